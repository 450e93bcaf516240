"""Partition data in the broker's process: directories' threads, peers, and the gRPC data service."""
