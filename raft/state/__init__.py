"""What a replica knows: hard state, role, bounds of its log, peers. `raft.protocol` holds the rules."""
