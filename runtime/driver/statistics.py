"""Counts of a driver's loop, for status and benchmarks.

Owns the values only. Does not know Kafka's metrics: `runtime.metrics` counts those.
"""

from __future__ import annotations

import msgspec


class LoopStatistics(msgspec.Struct):
    """Counts since the loop started. Times in ms."""

    events: int = 0
    steps: int = 0
    syncs: int = 0
    gaps: int = 0
    longest_gap_ms: int = 0
    refused: int = 0
