"""The errors that stop a node: a broken law of Raft, or a caller that broke the core's contract.

Owns the two classes and not the checks: `invariants` has the laws. Does not have errors that a peer may
receive (`messages`) or those of files (`storage`).
"""

from __future__ import annotations


class RaftInvariantError(Exception):
    """A law of Raft does not hold. The process must stop before the damage spreads."""


class RaftUsageError(Exception):
    """The caller did something that the core's contract forbids (a bug in the caller)."""
