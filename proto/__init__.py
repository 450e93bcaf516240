"""The gRPC contract, and the code that `generate.py` makes of it. Nothing here is written by hand."""
