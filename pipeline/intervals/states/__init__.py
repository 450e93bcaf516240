"""States of partitions in columns: those that hold, and rows of those that ended."""
