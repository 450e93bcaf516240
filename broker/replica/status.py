"""A broker's replicas as it sees them at one moment: figures for metrics.

Owns the values. Does not count: `requests.describe` does. Knows no metric's name, which `server.metrics` has.
"""

from __future__ import annotations

import msgspec


class LocalReplicaStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of this broker's replicas. `under_replicated`, `under_min_isr`: partitions that it leads with
    fewer in sync than replicas, or than `min.insync.replicas`; `at_min_isr`: with exactly that many.
    `offline`: replicas that the log places here and that cannot be served (S3.24). `unassigned`: placed here,
    but the log does not name the directory yet. `waiting_produces`, `waiting_fetches`: parked requests.
    `fetchers`: loops that fetch from other leaders; `max_lag`: the largest lag of a follower here, in
    offsets. `offline_directories`: paths."""

    replicas: int = 0
    leaders: int = 0
    followers: int = 0
    offline: int = 0
    unassigned: int = 0
    under_replicated: int = 0
    under_min_isr: int = 0
    at_min_isr: int = 0
    offline_directories: tuple[str, ...] = ()
    waiting_produces: int = 0
    waiting_fetches: int = 0
    fetch_sessions: int = 0
    fetchers: int = 0
    max_lag: int = 0
    isr_shrinks: int = 0
    isr_expands: int = 0
    pending_isr_changes: int = 0
    pending_reconciliations: int = 0
    replicated_bytes: int = 0
