"""The gRPC contract, and the code that `generate.py` makes of it. Nothing here is written by hand."""

if __name__ == "proto":
    raise ImportError("import metaquorum.proto: this folder is a part of the package metaquorum")
