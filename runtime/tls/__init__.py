"""Keys and certificates of a process, for gRPC and for all other TLS connections."""
