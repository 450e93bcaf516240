"""Counts of a driver's loop. Values only."""

from __future__ import annotations

import msgspec


class LoopStatistics(msgspec.Struct):
    """What the loop has done; for status and benchmarks. Times in ms."""

    events: int = 0
    steps: int = 0
    syncs: int = 0
    gaps: int = 0
    longest_gap_ms: int = 0
    refused: int = 0
