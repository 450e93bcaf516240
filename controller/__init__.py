"""The active controller: Raft below it, decisions in it, and the node that orders their effects."""

if __name__ == "controller":
    raise ImportError("import metaquorum.controller: this folder is a part of the package metaquorum")
