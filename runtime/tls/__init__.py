"""Keys and certificates of a process, for gRPC and for everything else that speaks TLS."""
