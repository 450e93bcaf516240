"""Decisions on many partitions at once, in columns. `partitions` and `topics` define them for one
partition."""
