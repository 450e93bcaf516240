"""The ways in which a simulated run fails."""

from __future__ import annotations


class SafetyError(Exception):
    """A law of the system was broken."""


class LivenessError(Exception):
    """The cluster did not recover in time after everything was healed."""
