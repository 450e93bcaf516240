"""A partition's log: producers, time index, pooled files."""
