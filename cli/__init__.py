"""The `metaquorum` command."""
