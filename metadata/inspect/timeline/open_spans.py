"""What partitions are in at the end of a log, as events.

Owns the texts. Since when they are, `spans` knows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from metaquorum.metadata.inspect.changes.change_steps import PartitionKey, Place
from metaquorum.metadata.inspect.timeline.event_groups import Grouped, duration, listed
from metaquorum.metadata.inspect.timeline.spans import PartitionSpans


def still_open(spans: PartitionSpans, offset: int, time_ms: int) -> Iterator[Grouped]:
    """At the end of the log, which is at `offset` and `time_ms`."""
    yield from _still("still leaderless", "critical", spans, spans.leaderless, (offset, time_ms))
    yield from _still("still under min isr", "warning", spans, spans.under_min, (offset, time_ms))


def _still(
    kind: str, severity: str, spans: PartitionSpans, found: Mapping[PartitionKey, Place], end: Place
) -> Iterator[Grouped]:
    if not found:
        return
    key, oldest = min(found.items(), key=lambda item: item[1])
    least, before = ("at least ", " or before") if spans.is_unsure(key) else ("", "")
    which = listed([spans.name(one) for one in found])
    text = f"{which}, the longest for {least}{duration(end[1] - oldest[1])}, since {oldest[0]}{before}"
    paths = tuple(spans.path(one) for one in found)
    yield Grouped(end[0], kind, paths[0], text, severity, None, paths)
