"""The segmented log: segments, indexes, recovery, the leader-epoch table."""
