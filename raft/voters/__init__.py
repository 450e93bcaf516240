"""The voters of a quorum as values, and which of them are in force at which offset of a log (KIP-853)."""
