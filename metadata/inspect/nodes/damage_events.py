"""Damage of one node's log that another node's log makes up for, as events of their common log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import merge

from metaquorum.metadata.inspect.causes.rule import WARNING
from metaquorum.metadata.inspect.log.clock import clock_of
from metaquorum.metadata.inspect.log.coverage import offsets_text
from metaquorum.metadata.inspect.log.log import MetadataLog
from metaquorum.metadata.inspect.log.places import batch_at
from metaquorum.metadata.inspect.log.points import Point
from metaquorum.metadata.inspect.nodes.merge import NodesReport
from metaquorum.metadata.inspect.timeline.event import TimelineEvent


def with_damage(
    events: Iterable[TimelineEvent], log: MetadataLog, report: NodesReport, start: Point | None, end: Point
) -> Iterator[TimelineEvent]:
    """The `events` of the nodes' common `log`, with the damage of each node from `start`
    up to `end` inserted."""
    damage = [
        event
        for event in sorted(_damage(log, report), key=lambda one: one.offset)
        if not (start is not None and _is_before(event, start)) and (end.is_end or _is_before(event, end))
    ]
    return merge(events, damage, key=lambda event: event.offset)


def _damage(log: MetadataLog, report: NodesReport) -> Iterator[TimelineEvent]:
    for node in report.nodes:
        for lost in node.lost:
            batch = batch_at(log, lost.start)
            if lost.by is None or batch is None:
                continue
            header = batch.header
            entity = "quorum" if node.node_id is None else f"controller/{node.node_id}"
            yield TimelineEvent(
                offset=lost.start,
                epoch=header.leader_epoch,
                time_ms=clock_of(log).time_ms(lost.start, header.max_timestamp_ms),
                kind="replica damaged",
                entity=entity,
                text=f"{node.name} has no {offsets_text(lost.start, lost.end)}: read from {lost.by}",
                severity=WARNING,
                entities=(entity,),
            )


def _is_before(event: TimelineEvent, point: Point) -> bool:
    if point.time_ms is not None:
        return event.time_ms < point.time_ms
    return point.offset is not None and event.offset < point.offset + point.after
