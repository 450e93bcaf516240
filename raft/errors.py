"""What stops a node: a broken law of Raft, or a caller that broke the core's contract."""

from __future__ import annotations


class RaftInvariantError(Exception):
    """A law of Raft does not hold here. The process must stop before the damage spreads."""


class RaftUsageError(Exception):
    """The caller asked for something that the core's contract forbids (a bug in the caller)."""
