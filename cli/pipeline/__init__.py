"""`metaquorum pipeline`: every command a module of its own, loaded when it is used."""
