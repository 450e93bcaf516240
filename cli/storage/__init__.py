"""`metaquorum storage`: format directories and look at their identity."""
