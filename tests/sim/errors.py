"""How a simulated run fails."""

from __future__ import annotations


class SafetyError(Exception):
    """A law of the system was broken."""


class LivenessError(Exception):
    """After all was healed the cluster did not get well in time."""
