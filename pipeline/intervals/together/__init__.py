"""Batches that are replayed together, in columns: what they change, and what that means for brokers."""
