"""The gRPC contract and the code generated from it."""
