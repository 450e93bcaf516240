"""The rules of the protocol, role by role. `raft.core` is the entry point; the rules change `raft.state`."""
