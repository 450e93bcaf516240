"""`metaquorum log timeline`: what happened, one line an event. Reads only.

Owns options, colours and exit codes; what is an event and how severe is `metadata.inspect.timeline`'s.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import click

from cli import log_source
from cli.errors import log_exit_code
from cli.log_live import LiveCommand
from cli.log_nodes import open_merged, tell_nodes
from cli.log_options import ENTITY, PATH, POINT, Complaints, clear_progress, tell_limits, tell_unknown
from cli.log_source import MetadataLog, ReadBatch
from cli.output import json_line, json_option, utc_text
from metadata.inspect.concern import Stretch
from metadata.inspect.coverage import before_the_log
from metadata.inspect.creations import may_create
from metadata.inspect.log import decode_item
from metadata.inspect.places import Limits
from metadata.inspect.points import END, Point
from metadata.inspect.states import OnProblem, earliest, settle, state_at
from metadata.inspect.timeline import (
    CRITICAL,
    DETAIL,
    GAP_MS,
    INFO,
    SEVERITIES,
    Timeline,
    TimelineEvent,
    at_least,
)
from metadata.inspect.timeline import WARNING as WARNING_SEVERITY
from metadata.inspect.why import decoded_runs
from storage.batch import BatchHeader, RecordBatch
from storage.reader import Damage

_COLOURS = {CRITICAL: "red", WARNING_SEVERITY: "yellow", INFO: None, DETAIL: "bright_black"}


@click.command(cls=LiveCommand)
@click.argument("paths", nargs=-1, required=True, type=PATH, metavar="PATH...")
@click.option(
    "--severity",
    type=click.Choice(SEVERITIES),
    default=INFO,
    show_default=True,
    help="Only events of this severity and above.",
)
@click.option(
    "--entity",
    "entities",
    type=ENTITY,
    multiple=True,
    help="Only what is about broker/3, topic/orders/7, quorum...",
)
@click.option("--from", "start", type=POINT, metavar="OFFSET|OFFSET+|TIME", help="Nothing before this place.")
@click.option("--to", "end", type=POINT, metavar="OFFSET|OFFSET+|TIME", help="Nothing from this place on.")
@click.option(
    "--gap",
    "gap_s",
    type=click.FloatRange(min=0.001),
    default=GAP_MS / 1000,
    show_default=True,
    help="Seconds of silence that are an event.",
)
@json_option
def timeline(
    paths: tuple[str, ...],
    severity: str,
    entities: tuple[str, ...],
    start: Point | None,
    end: Point | None,
    gap_s: float,
    as_json: bool,
) -> int:
    """Tell what happened: elections, fences, leaders lost and found, reassignments, directories, settings.

    The logs of several nodes (PATHs, a directory of nodes, an archive) are compared and told as one.
    """
    complaints = Complaints()
    log, nodes = open_merged(paths)
    if nodes is not None:
        tell_nodes(nodes, complaints)
    shown = at_least(severity)
    seen = Seen()
    if start is not None:
        start, shown_as = settle(log, start)
        seen.limits.place(shown_as)
        seen.limits.coverage.add(before_the_log(log, start))
    told = 0
    on_terminal = not click.utils.should_strip_ansi(sys.stdout)  # type: ignore[attr-defined]
    try:
        for event in events(
            log, complaints, end=end or END, gap_ms=int(gap_s * 1000), seen=seen, shown=shown
        ):
            if start is not None and _is_before(event, start):
                continue
            if entities and not any(event.is_about(wanted) for wanted in entities):
                continue
            clear_progress(log)
            if on_terminal:
                click.echo(json_line(event_json(event)) if as_json else coloured(event))
            else:  # a flush a line would cost as much as the line
                sys.stdout.write((json_line(event_json(event)) if as_json else plain(event)) + "\n")
            told += 1
    finally:
        clear_progress(log)
    reached = [
        line for point in (start, end) if point is not None and (line := seen.outside(log.path, point))
    ]
    if not told and not reached and not complaints.count:
        about = f" about {' or '.join(entities)}" if entities else ""
        where = "" if start is None and end is None else " in that range"
        reached = [f"no event was shown: none of severity {severity} or above{about}{where}"]
    for line in reached:
        click.echo(f"metaquorum: {line}", err=True)
    tell_limits(seen.limits.coverage, seen.limits.shown, json_lines=as_json)
    tell_unknown(seen.unknown)
    return log_exit_code(
        damaged=bool(complaints.count), uncovered=bool(seen.limits.coverage), unknown=bool(seen.unknown)
    )


@dataclass(slots=True)
class Seen:
    """What was read on the way to a timeline: from when to when (Unix ms), up to which offset (exclusive),
    how many records from the future, and what the events do not cover."""

    first_ms: int | None = None
    last_ms: int | None = None
    end_offset: int = 0
    unknown: int = 0
    limits: Limits = field(default_factory=Limits)

    def take(self, header: BatchHeader) -> None:
        """Takes one batch in, also the one behind the wanted range."""
        self.first_ms = header.max_timestamp_ms if self.first_ms is None else self.first_ms
        self.last_ms = max(header.max_timestamp_ms, self.last_ms or 0)
        self.end_offset = max(header.next_offset, self.end_offset)

    def pass_over(self, stretch: Stretch) -> None:
        """The same for idle batches behind others."""
        self.last_ms = max(stretch.time_ms, self.last_ms or 0)
        self.end_offset = max(stretch.next_offset, self.end_offset)

    def outside(self, path: str, point: Point) -> str | None:
        """Why the log does not reach `point`; None where it does."""
        if point.offset is not None and point.offset > self.end_offset:
            return f"{path} ends at offset {self.end_offset}, before {point.offset}"
        if point.time_ms is None or self.first_ms is None:
            return None
        if point.time_ms < self.first_ms:
            return f"{path} begins at {utc_text(self.first_ms)}, after {utc_text(point.time_ms)}"
        if self.last_ms is not None and point.time_ms > self.last_ms:
            return f"{path} ends at {utc_text(self.last_ms)}, before {utc_text(point.time_ms)}"
        return None


def events(
    log: MetadataLog | str,
    on_problem: OnProblem,
    *,
    end: Point = END,
    gap_ms: int = GAP_MS,
    seen: Seen | None = None,
    shown: frozenset[str] = frozenset(SEVERITIES),
) -> Iterator[TimelineEvent]:
    """Every event of a log up to `end`, in order, of the severities `shown`. Lines about what could not be
    read go to `on_problem`, and reading goes on behind it."""
    if isinstance(log, str):
        log = log_source.open_path(log, progress=False)
    end, shown_as = settle(log, end)
    if seen is not None:
        seen.limits.place(shown_as)
    image = None
    if log.start_offset and not log.is_checkpoint:
        image = state_at(log, earliest(log), past_corruption=True).image
    timeline = Timeline(image, gap_ms=gap_ms, shown=shown)
    first = 0 if image is None else image.provenance.offset
    for item in decoded_runs(log, first, end, timeline.pieces, may_create):
        if isinstance(item, Damage):
            on_problem(log_source.damage_line(item))
            continue
        if isinstance(item, Stretch):
            for told in timeline.stretch(item):
                yield from told
            if seen is not None:
                seen.pass_over(item)
            continue
        batch = item if isinstance(item, RecordBatch) else item.batch
        header = batch.header
        if header.next_offset <= first:
            continue
        if seen is not None:
            seen.take(header)
        if end.offset is not None and header.base_offset >= end.offset:
            break
        if end.time_ms is not None and header.max_timestamp_ms > end.time_ms:
            break
        made = timeline.creations(batch) if isinstance(item, RecordBatch) else None
        if made is not None:
            yield from made
            continue
        for read in (item,) if isinstance(item, ReadBatch) else decode_item(batch):
            if isinstance(read, Damage):
                on_problem(log_source.damage_line(read))
                continue
            if seen is not None:
                seen.unknown += sum(one.record.type_name.startswith("UNKNOWN") for one in read.records)
            records = [(decoded.offset, decoded.record) for decoded in read.records]
            yield from timeline.batch(header.leader_epoch, header.max_timestamp_ms, records)
    yield from timeline.finish()


def _is_before(event: TimelineEvent, start: Point) -> bool:
    if start.offset is not None:
        return event.offset < start.offset
    return start.time_ms is not None and event.time_ms < start.time_ms


def event_text(event: TimelineEvent) -> str:
    """Offset, time, epoch, kind, text, and the rule that names the cause."""
    rule = f"  [{event.rule}]" if event.rule else ""
    place = f"{event.offset:>7}  {utc_text(event.time_ms)}  epoch {event.epoch:<3}"
    return f"{place} {event.kind:<28} {event.text}{rule}"


def plain(event: TimelineEvent) -> str:
    """The same with its severity."""
    rule = f"  [{event.rule}]" if event.rule else ""
    place = f"{event.offset:>7}  {utc_text(event.time_ms)}  epoch {event.epoch:<3}"
    return f"{place} {event.severity:<8}  {event.kind:<28} {event.text}{rule}"


def coloured(event: TimelineEvent) -> str:
    """The same with its severity, in colour on a terminal."""
    rule = click.style(f"  [{event.rule}]", dim=True) if event.rule else ""
    place = f"{event.offset:>7}  {utc_text(event.time_ms)}  epoch {event.epoch:<3}"
    colour = _COLOURS[event.severity]
    told = click.style(f"{event.severity:<8}  {event.kind:<28} {event.text}", fg=colour)
    return f"{place} {told}{rule}"


def event_json(event: TimelineEvent) -> dict[str, Any]:
    """One event under the names that `log dump --json` uses."""
    return {
        "offset": event.offset,
        "leaderEpoch": event.epoch,
        "createTime": event.time_ms,
        "severity": event.severity,
        "kind": event.kind,
        "entity": event.entity,
        "entities": list(event.entities or (event.entity,)),
        "rule": event.rule,
        "text": event.text,
    }
