"""The rules of the protocol, role by role. `raft.core` is the way in, `raft.state` what the rules change."""
