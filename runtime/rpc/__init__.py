"""gRPC plumbing: channels, the Raft transport, shared services, and why a connection failed."""
