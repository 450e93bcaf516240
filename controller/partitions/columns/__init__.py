"""Decisions on many partitions at once, in columns. `partitions` and `topics` say what they mean for one."""
