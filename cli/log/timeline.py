"""`metaquorum log timeline`: prints what happened, one line per event."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

import click

from metaquorum.cli.errors import log_exit_code, print_problem
from metaquorum.cli.given import FiniteRange
from metaquorum.cli.log.input import source as log_source
from metaquorum.cli.log.input.follow import COPY_INTERVAL_S, INTERVAL_S, follow_story
from metaquorum.cli.log.input.live import FOLLOWED, LIVE_COPY, LiveCommand
from metaquorum.cli.log.input.nodes import open_merged, report_nodes
from metaquorum.cli.log.input.options import (
    ENTITY,
    PATH,
    POINT,
    Complaints,
    clear_progress,
    refuse_swapped,
    report_limits,
    report_unknown,
    suggestion_from,
)
from metaquorum.cli.log.input.source import MetadataLog
from metaquorum.cli.text.output import json_line, json_option, utc_text
from metaquorum.metadata.inspect.answers import event_json
from metaquorum.metadata.inspect.causes.rule import CRITICAL, DETAIL, INFO, SEVERITIES
from metaquorum.metadata.inspect.causes.rule import WARNING as WARNING_SEVERITY
from metaquorum.metadata.inspect.log.coverage import Coverage
from metaquorum.metadata.inspect.log.points import END, Point
from metaquorum.metadata.inspect.nodes.merged_log import with_damage
from metaquorum.metadata.inspect.timeline.event import TimelineEvent, at_least
from metaquorum.metadata.inspect.timeline.story import GrowingStory, Seen
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
    type=FiniteRange(min=0.001),
    default=GAP_MS / 1000,
    show_default=True,
    help="Report gaps without records of at least this many seconds.",
)
@click.option("--follow", is_flag=True, help="Keep printing new events until Ctrl-C or --to.")
@json_option
def timeline(
    paths: tuple[str, ...],
    severity: str,
    entities: tuple[str, ...],
    start: Point | None,
    end: Point | None,
    gap_s: float,
    follow: bool,
    as_json: bool,
) -> int:
    """Show what happened, one line per event.

    Shows elections, fences, leaders lost and found, reassignments, directories, settings. The logs of several
    nodes (several PATHs, a directory of nodes, an archive) are compared and merged into one. With --follow,
    what is still open is shown at --to only, and a node's files may hold records that are not committed yet.
    """
    refuse_swapped(start, end)
    complaints = Complaints()
    show = _Shown(entities, as_json)
    if follow:
        log, grows = _growing(paths, complaints, start, end or END, int(gap_s * 1000), at_least(severity))
        return _follow(log, grows, show, complaints)
    log, nodes = open_merged(paths)
    if nodes is not None:
        report_nodes(nodes, complaints)
    shown = at_least(severity)
    seen = Seen()
    try:
        story = story_of(
            log, complaints, start=start, end=end or END, gap_ms=int(gap_s * 1000), seen=seen, shown=shown
        )
        if nodes is not None and WARNING_SEVERITY in shown:
            story = with_damage(story, log, nodes, start, end or END)
        for event in story:
            if show.wants(event):
                clear_progress(log)
                show(event)
    finally:
        clear_progress(log)
    reached = [
        line for point in (start, end) if point is not None and (line := seen.outside(log.name, point))
    ]
    if not show.shown_count and not (reached or complaints.count or seen.is_behind):
        about = f" about {' or '.join(entities)}" if entities else ""
        where = "" if start is None and end is None else " in that range"
        hints = "".join(suggestion_from(log, one) for one in entities)
        reached = [f"no event of severity {severity} or above{about}{where}{hints}"]
    for line in reached:
        print_problem(line)
    report_limits(seen.limits.coverage, seen.limits.shown, json_lines=as_json)
    report_unknown(seen.limits.unknown)
    return log_exit_code(
        damaged=bool(complaints.count),
        uncovered=bool(seen.limits.coverage),
        unknown=bool(seen.limits.unknown),
    )


class _Shown:
    """Prints events, if they are about the entities that were asked for."""

    def __init__(self, entities: tuple[str, ...], as_json: bool) -> None:
        self._entities = entities
        self.as_json = as_json
        self._is_plain = click.utils.should_strip_ansi(sys.stdout, click.get_current_context().color)  # type: ignore[attr-defined]
        self.shown_count = 0

    def wants(self, event: TimelineEvent) -> bool:
        return not self._entities or any(event.is_about(wanted) for wanted in self._entities)

    def __call__(self, event: TimelineEvent) -> None:
        self.shown_count += 1
        if self._is_plain:  # a flush per line would cost as much as the line
            sys.stdout.write((json_line(event_json(event)) if self.as_json else plain(event)) + "\n")
        else:
            click.echo(json_line(event_json(event)) if self.as_json else coloured(event))


def _growing(
    paths: tuple[str, ...],
    complaints: Complaints,
    start: Point | None,
    end: Point,
    gap_ms: int,
    shown: frozenset[str],
) -> tuple[MetadataLog, GrowingStory]:
    """The story of one log that may grow."""
    if len(paths) != 1:
        raise click.UsageError("--follow takes exactly one PATH")
    log = None if log_source.is_packed(paths[0]) else log_source.open_path(paths[0], progress=False)
    if log is None or log.is_checkpoint:
        raise click.UsageError(f"{paths[0]} does not grow; leave out --follow")
    return log, GrowingStory(log, complaints, start=start, end=end, gap_ms=gap_ms, shown=shown)


def _follow(log: MetadataLog, story: GrowingStory, show: _Shown, complaints: Complaints) -> int:
    """Prints events until the end of what was asked for, with each limit as soon as it is known."""
    meta = click.get_current_context().meta
    check, copy = meta.get(FOLLOWED), meta.get(LIVE_COPY)
    limits, reported = story.seen.limits, Coverage()
    shown = list(limits.shown)

    def emit(events: Iterable[TimelineEvent]) -> None:
        for event in events:
            if show.wants(event):
                show(event)
        fresh = Coverage([one for one in limits.coverage if one not in reported.ranges])
        report_limits(fresh, shown, json_lines=show.as_json)
        reported.extend(fresh)
        shown.clear()
        sys.stdout.flush()
        if copy is not None:
            copy.forget_below(story.place)

    try:
        interval_s = INTERVAL_S if check is None else COPY_INTERVAL_S
        follow_story(story, log.path, emit, interval_s=interval_s, check=check)
        emit(story.finish())
    finally:
        story.close()
        sys.stdout.flush()
    report_unknown(limits.unknown)
    return log_exit_code(
        damaged=bool(complaints.count), uncovered=bool(limits.coverage), unknown=bool(limits.unknown)
    )


def events(log: MetadataLog | str, on_problem: OnProblem) -> Iterator[TimelineEvent]:
    """Every event of a log, or of the log at a path (see `metadata.inspect.timeline.story`)."""
    opened = log_source.open_path(log, progress=False) if isinstance(log, str) else log
    return story_of(opened, on_problem)


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
    text = click.style(f"{event.severity:<8}  {event.kind:<28} {event.text}", fg=colour)
    return f"{place} {text}{why}"
