"""Streams of bytes cut into frames, and connections of the event loop that carry them. Knows no gRPC."""
