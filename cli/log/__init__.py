"""`metaquorum log`: every command that reads a log."""
