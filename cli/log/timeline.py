"""`metaquorum log timeline`: prints what happened, one line per event."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import click

from metaquorum.cli.errors import log_exit_code
from metaquorum.cli.log.input import source as log_source
from metaquorum.cli.log.input.live import LiveCommand
from metaquorum.cli.log.input.nodes import open_merged, tell_nodes
from metaquorum.cli.log.input.options import (
    ENTITY,
    PATH,
    POINT,
    Complaints,
    clear_progress,
    refuse_swapped,
    suggestion_from,
    tell_limits,
    tell_unknown,
)
from metaquorum.cli.log.input.source import MetadataLog
from metaquorum.cli.text.output import json_line, json_option, utc_text
from metaquorum.metadata.inspect.answers import event_json
from metaquorum.metadata.inspect.causes.rule import CRITICAL, DETAIL, INFO, SEVERITIES
from metaquorum.metadata.inspect.causes.rule import WARNING as WARNING_SEVERITY
from metaquorum.metadata.inspect.log.points import END, Point
from metaquorum.metadata.inspect.nodes.damage_events import with_damage
from metaquorum.metadata.inspect.timeline.event import TimelineEvent, at_least
from metaquorum.metadata.inspect.timeline.story import Seen
from metaquorum.metadata.inspect.timeline.story import events as story_of
from metaquorum.metadata.inspect.timeline.time_events import GAP_MS
from metaquorum.metadata.inspect.walk.states import OnProblem
from metaquorum.metadata.text.cause_text import brief_text

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
    help="Only events about this entity: broker/3, topic/orders/7, quorum...",
)
@click.option(
    "--from", "start", type=POINT, metavar="OFFSET|OFFSET+|TIME", help="Only from this position on."
)
@click.option(
    "--to", "end", type=POINT, metavar="OFFSET|OFFSET+|TIME", help="Only up to this position, exclusive."
)
@click.option(
    "--gap",
    "gap_s",
    metavar="SECONDS",
    type=click.FloatRange(min=0.001),
    default=GAP_MS / 1000,
    show_default=True,
    help="Report gaps without records of at least this many seconds.",
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
    """Show what happened, one line per event.

    Shows elections, fences, leaders lost and found, reassignments, directories, settings. The logs of several
    nodes (several PATHs, a directory of nodes, an archive) are compared and merged into one.
    """
    refuse_swapped(start, end)
    complaints = Complaints()
    log, nodes = open_merged(paths)
    if nodes is not None:
        tell_nodes(nodes, complaints)
    shown = at_least(severity)
    seen = Seen()
    told = 0
    on_terminal = not click.utils.should_strip_ansi(sys.stdout, click.get_current_context().color)  # type: ignore[attr-defined]
    try:
        story = story_of(
            log, complaints, start=start, end=end or END, gap_ms=int(gap_s * 1000), seen=seen, shown=shown
        )
        if nodes is not None and WARNING_SEVERITY in shown:
            story = with_damage(story, log, nodes, start, end or END)
        for event in story:
            if entities and not any(event.is_about(wanted) for wanted in entities):
                continue
            clear_progress(log)
            if on_terminal:
                click.echo(json_line(event_json(event)) if as_json else coloured(event))
            else:  # a flush per line would cost as much as the line
                sys.stdout.write((json_line(event_json(event)) if as_json else plain(event)) + "\n")
            told += 1
    finally:
        clear_progress(log)
    reached = [
        line for point in (start, end) if point is not None and (line := seen.outside(log.path, point))
    ]
    if not told and not (reached or complaints.count or seen.is_behind):
        about = f" about {' or '.join(entities)}" if entities else ""
        where = "" if start is None and end is None else " in that range"
        hints = "".join(suggestion_from(log, one) for one in entities)
        reached = [f"no event of severity {severity} or above{about}{where}{hints}"]
    for line in reached:
        click.echo(f"metaquorum: {line}", err=True)
    tell_limits(seen.limits.coverage, seen.limits.shown, json_lines=as_json)
    tell_unknown(seen.limits.unknown)
    return log_exit_code(
        damaged=bool(complaints.count),
        uncovered=bool(seen.limits.coverage),
        unknown=bool(seen.limits.unknown),
    )


def events(
    log: MetadataLog | str, on_problem: OnProblem, *, end: Point = END, seen: Seen | None = None
) -> Iterator[TimelineEvent]:
    """Every event of a log, or of the log at a path, up to `end` (see `metadata.inspect.timeline.story`)."""
    opened = log_source.open_path(log, progress=False) if isinstance(log, str) else log
    return story_of(opened, on_problem, end=end, seen=seen)


def _because(event: TimelineEvent) -> str:
    """The rule that names the cause, and which request caused it."""
    rule = f"  [{event.rule}]" if event.rule else ""
    return rule if event.asked is None else f"{rule}  ({brief_text(event.asked)})"


def event_text(event: TimelineEvent) -> str:
    """Offset, time, epoch, kind, text, and the rule that names the cause."""
    place = f"{event.offset:>7}  {utc_text(event.time_ms)}  epoch {event.epoch:<3}"
    return f"{place} {event.kind:<28} {event.text}{_because(event)}"


def plain(event: TimelineEvent) -> str:
    """The text of an event with its severity."""
    place = f"{event.offset:>7}  {utc_text(event.time_ms)}  epoch {event.epoch:<3}"
    return f"{place} {event.severity:<8}  {event.kind:<28} {event.text}{_because(event)}"


def coloured(event: TimelineEvent) -> str:
    """The text of an event with its severity, colored on a terminal."""
    why = click.style(_because(event), dim=True)
    place = f"{event.offset:>7}  {utc_text(event.time_ms)}  epoch {event.epoch:<3}"
    colour = _COLOURS[event.severity]
    told = click.style(f"{event.severity:<8}  {event.kind:<28} {event.text}", fg=colour)
    return f"{place} {told}{why}"
