"""The asyncio and gRPC shell around a controller node."""
