"""The voters of a quorum as values, and which of them are in force where in a log (KIP-853)."""
