"""Partition data in the broker's process: threads of the directories, peers, and the gRPC data service."""
