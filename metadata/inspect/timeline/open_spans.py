"""Events for spans of partitions that no record begins or ends: at a snapshot, and at the end of a log."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.inspect.changes.change_steps import PartitionKey, Place
from metaquorum.metadata.inspect.timeline.event_groups import Grouped, duration, listed
from metaquorum.metadata.inspect.timeline.span import OpenSpan, bound_of
from metaquorum.metadata.inspect.timeline.spans import PartitionSpans

SEVERITIES = {"leaderless": "critical", "under min isr": "warning", "reassigning": "info"}
Named = Callable[[PartitionKey], tuple[str, str]]
"""A partition's name in events, and its path."""


def learned_events(spans: PartitionSpans, moment: Place) -> Iterator[Grouped]:
    """What is open or no longer open according to the snapshot at `moment`, but has no record."""
    for kind, already, ended in spans.learned:
        if ended:
            yield no_longer(kind, ended, spans.named, moment)
        if already:
            which, paths = _which(already, spans.named)
            text = f"{which}, since {moment[0]} or before"
            yield Grouped(
                moment[0],
                f"already {kind}",
                paths[0],
                text,
                SEVERITIES[kind],
                None,
                paths,
                bound=bound_of([*already.values()]),
            )


def no_longer(kind: str, ended: Mapping[PartitionKey, OpenSpan], named: Named, moment: Place) -> Grouped:
    """Spans that ended among lost records: at `moment` they are over."""
    which, paths = _which(ended, named)
    oldest = min(ended.values())
    lasted, bound = moment[1] - oldest.time_ms, bound_of([*ended.values()])
    text = f"{which}, after {bound}{duration(lasted)}, since {oldest.offset}{oldest.or_before}"
    return Grouped(
        moment[0],
        f"no longer {kind}",
        paths[0],
        text,
        "info",
        None,
        paths,
        span_ms=lasted,
        bound=bound,
    )


def still_open(
    spans: PartitionSpans, offset: int, time_ms: int, image: MetadataImage | None
) -> Iterator[Grouped]:
    """Spans open at the end of the log, which is at `offset` and `time_ms`, with this image, if it is
    known. A reassignment to brokers that are gone or fenced does not end by itself."""
    for kind, open_spans in spans.kinds().items():
        if open_spans:
            missing = "" if image is None or kind != "reassigning" else _missing_brokers(image, open_spans)
            which, paths = _which(open_spans, spans.named)
            oldest = min(open_spans.values())
            lasted = time_ms - oldest.time_ms
            since = f"{oldest.bound}{duration(lasted)}, since {oldest.offset}{oldest.or_before}"
            yield Grouped(
                offset,
                f"still {kind}",
                paths[0],
                f"{which}, the longest for {since}{missing}",
                "warning" if missing else SEVERITIES[kind],
                None,
                paths,
                span_ms=lasted,
                bound=oldest.bound,
            )


def _missing_brokers(image: MetadataImage, moving: Mapping[PartitionKey, OpenSpan]) -> str:
    """The brokers for which reassignments wait; empty if all of them are there."""
    waits: dict[int, str] = {}
    for topic_id, index in moving:
        partition = image.topics.partition(topic_id, index)
        for node in () if partition is None else partition.adding:
            broker = image.brokers.get(node)
            if broker is None or broker.fenced:
                waits[node] = f"{node} ({'not registered' if broker is None else 'fenced'})"
    if not waits:
        return ""
    names = listed([waits[node] for node in sorted(waits)])
    return f"; {'brokers' if len(waits) > 1 else 'broker'} {names} must return, or cancel it"


def _which(spans: Mapping[PartitionKey, OpenSpan], named: Named) -> tuple[str, tuple[str, ...]]:
    every = [named(key) for key in spans]
    return listed([name for name, _ in every]), tuple(path for _, path in every)
