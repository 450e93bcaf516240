"""The broker as a process: gRPC around the pure node."""
