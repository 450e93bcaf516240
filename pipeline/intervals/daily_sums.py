"""The sums of a day for a cluster, broker or rack, and their rows of `availability`.

Owns addition and subtraction of sums, and quantiles of durations. Knows no partitions or brokers and does not
count; `tables.availability` does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import msgspec

from metaquorum.pipeline.intervals.moments import Row
from metaquorum.pipeline.tables import FAILOVER_BOUNDS_MS


class DailySums(msgspec.Struct):
    """The sums of one day and scope."""

    observed_ms: int = 0
    unobserved_ms: int = 0
    off_ms: int = 0
    partition_ms: int = 0
    leaderless_ms: int = 0
    under_min_isr_ms: int = 0
    leader_changes: int = 0
    unclean_elections: int = 0
    isr_shrinks: int = 0
    isr_expands: int = 0
    fences: int = 0
    fence_storms: int = 0
    failovers: int = 0
    failovers_open: int = 0
    durations: dict[int, int] = {}
    """Milliseconds: number of failovers that began on this day and took this long."""


_COUNTS = tuple(name for name in DailySums.__struct_fields__ if name != "durations")


def difference_of(now: DailySums, before: DailySums) -> DailySums | None:
    """What was counted between `before` and `now`; None if nothing."""
    more = DailySums(**{name: getattr(now, name) - getattr(before, name) for name in _COUNTS})
    counts = {at: n - before.durations.get(at, 0) for at, n in now.durations.items()}
    more.durations = {at: n for at, n in counts.items() if n}
    return more if more != DailySums() else None


def add_sums(cell: DailySums, more: DailySums) -> None:
    """Adds `more` to `cell`."""
    for name in _COUNTS:
        setattr(cell, name, getattr(cell, name) + getattr(more, name))
    for at, n in more.durations.items():
        cell.durations[at] = cell.durations.get(at, 0) + n


def sums_row(scope: str, name: str, cell: DailySums, whole: DailySums) -> Row:
    """A row of the table. `whole`: the cluster's sums of that day."""
    return (
        *(scope, name, whole.observed_ms / 1000, whole.unobserved_ms / 1000, whole.off_ms / 1000),
        cell.partition_ms / 1000,
        *(cell.leaderless_ms / 1000, cell.under_min_isr_ms / 1000, cell.leader_changes),
        *(cell.unclean_elections, cell.isr_shrinks, cell.isr_expands, cell.fences, cell.fence_storms),
        *(cell.failovers, cell.failovers_open),
        *(quantile(cell.durations, 0.5), quantile(cell.durations, 0.95)),
        *(float(max(cell.durations)) if cell.durations else None, _histogram(cell.durations)),
    )


def quantile(counts: Mapping[int, int], share: float) -> float | None:
    """The quantile of values with counts, linear between neighbors; None without values."""
    total = sum(counts.values())
    if not total:
        return None
    place = share * (total - 1)
    low, part = int(place), place - int(place)
    found: list[int] = []
    seen = 0
    for value in sorted(counts):
        seen += counts[value]
        while len(found) < 2 and seen > low + len(found):
            found.append(value)
        if len(found) == 2:
            break
    upper = found[-1]
    return found[0] + (upper - found[0]) * part


def _histogram(counts: Mapping[int, int]) -> list[int]:
    buckets: Counter[int] = Counter()
    for value, count in counts.items():
        at = next(
            (n for n, bound in enumerate(FAILOVER_BOUNDS_MS) if value <= bound), len(FAILOVER_BOUNDS_MS)
        )
        buckets[at] += count
    return [buckets[at] for at in range(len(FAILOVER_BOUNDS_MS) + 1)]
