"""The rules of the protocol, role by role, and the state that they share. `raft.core` is the way in."""
