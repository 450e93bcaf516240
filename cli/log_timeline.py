"""`metaquorum log timeline`: what happened, one line an event. Reads only.

Owns options, colours and exit codes; what is an event and how severe is `metadata.inspect.timeline`'s.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from cli import log_source
from cli.errors import EXIT_FAILED, EXIT_UNKNOWN_RECORDS
from cli.log_live import LiveCommand
from cli.log_options import ENTITY, PATH, POINT, Complaints, clear_progress
from cli.log_source import MetadataLog, ReadBatch
from cli.output import json_line, json_option, utc_text
from metadata.inspect.points import END, Point
from metadata.inspect.states import OnProblem, earliest, state_at
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

_COLOURS = {CRITICAL: "red", WARNING_SEVERITY: "yellow", INFO: None, DETAIL: "bright_black"}


@click.command(cls=LiveCommand)
@click.argument("path", type=PATH)
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
@click.option("--from", "start", type=POINT, metavar="OFFSET|TIME", help="Nothing before this place.")
@click.option("--to", "end", type=POINT, metavar="OFFSET|TIME", help="Nothing from this place on.")
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
    path: str,
    severity: str,
    entities: tuple[str, ...],
    start: Point | None,
    end: Point | None,
    gap_s: float,
    as_json: bool,
) -> int:
    """Tell what happened: elections, fences, leaders lost and found, reassignments, directories, settings."""
    complaints = Complaints()
    log = log_source.open_path(path)
    shown = at_least(severity)
    unknown = False
    try:
        for event in events(log, complaints, end=end or END, gap_ms=int(gap_s * 1000)):
            unknown = unknown or event.kind == "unknown record"
            if event.severity not in shown or (start is not None and _is_before(event, start)):
                continue
            if entities and not any(event.is_about(wanted) for wanted in entities):
                continue
            clear_progress(log)
            click.echo(json_line(event_json(event)) if as_json else coloured(event))
    finally:
        clear_progress(log)
    if complaints.count:
        return EXIT_FAILED
    return EXIT_UNKNOWN_RECORDS if unknown else 0


def events(
    log: MetadataLog | str, on_problem: OnProblem, *, end: Point = END, gap_ms: int = GAP_MS
) -> Iterator[TimelineEvent]:
    """Every event of a log up to `end`, in order, of all severities. Lines about what could not be read go to
    `on_problem`, and reading goes on behind it."""
    if isinstance(log, str):
        log = log_source.open_path(log, progress=False)
    image = None
    if log.start_offset and not log.is_checkpoint:
        image = state_at(log, earliest(log), past_corruption=True).image
    timeline = Timeline(image, gap_ms=gap_ms)
    first = 0 if image is None else image.provenance.offset
    for item in log.items(first or None):
        if not isinstance(item, ReadBatch):
            on_problem(log_source.damage_line(item))
            continue
        header = item.batch.header
        if header.next_offset <= first:
            continue
        if end.offset is not None and header.base_offset >= end.offset:
            break
        if end.time_ms is not None and header.max_timestamp_ms > end.time_ms:
            break
        records = [(decoded.offset, decoded.record) for decoded in item.records]
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
