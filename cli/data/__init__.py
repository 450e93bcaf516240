"""`metaquorum produce` and `metaquorum consume`."""
