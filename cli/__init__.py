"""The `metaquorum` command: a group of commands in each room, loaded when it is used."""

if __name__ == "cli":
    raise ImportError("import metaquorum.cli: this folder is a part of the package metaquorum")
