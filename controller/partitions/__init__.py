"""Decisions about topics and partitions: placement, leaders, ISRs, directories, reassignments."""
