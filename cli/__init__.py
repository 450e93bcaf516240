"""The `metaquorum` command: a group of commands in each room, loaded when it is used."""
