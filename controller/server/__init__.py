"""The controller as a process: gRPC services around the pure node."""
