"""A node's process: its start, its driver beside the disk, and the loop that carries out effects."""

if __name__ == "node":
    raise ImportError("import metaquorum.node: this folder is a part of the package metaquorum")
