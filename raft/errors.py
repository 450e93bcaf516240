"""The errors that stop a node: a broken law of Raft, or a caller that broke the core's contract."""

from __future__ import annotations


class RaftInvariantError(Exception):
    """A law of Raft does not hold. The process must stop before the damage spreads."""


class RaftUsageError(Exception):
    """The caller did something that the core's contract forbids (a bug in the caller)."""
