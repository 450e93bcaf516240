"""The asyncio and gRPC shell around a broker node."""
