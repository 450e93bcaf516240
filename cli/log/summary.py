"""`metaquorum log summary`: what happened, on one screen."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Iterator
from typing import Any

import click
import msgspec

from metaquorum.cli.errors import EXIT_CRITICAL, EXIT_WARNING, Failure, log_exit_code, print_problem
from metaquorum.cli.log.input.live import LiveCommand, words_to_read
from metaquorum.cli.log.input.nodes import nodes_json, open_merged, report_nodes
from metaquorum.cli.log.input.options import (
    PATH,
    POINT,
    Checked,
    Complaints,
    clear_progress,
    limits_json,
    offsets_text,
    refuse_swapped,
    report_limits,
    report_unknown,
)
from metaquorum.cli.log.input.source import MetadataLog
from metaquorum.cli.text.output import echo_json, json_option, terminal_width, trimmed, utc_text
from metaquorum.metadata.features import metadata_version_name
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.inspect.causes.rule import CRITICAL, INFO, SEVERITIES
from metaquorum.metadata.inspect.causes.rule import WARNING as WARNING_SEVERITY
from metaquorum.metadata.inspect.log.clock import clock_of
from metaquorum.metadata.inspect.log.coverage import MISSING, Coverage, batch_at, before_the_log, known_from
from metaquorum.metadata.inspect.log.points import END, Point, parse_span_ms
from metaquorum.metadata.inspect.log.quorum import quorum_at
from metaquorum.metadata.inspect.nodes.merge import NodesReport
from metaquorum.metadata.inspect.summary import NAME as NAME_OF_LOST
from metaquorum.metadata.inspect.summary import Place, Row, Section, Summary, lost_section
from metaquorum.metadata.inspect.timeline.event import at_least
from metaquorum.metadata.inspect.timeline.event_groups import count, duration
from metaquorum.metadata.inspect.timeline.story import Seen, events
from metaquorum.metadata.inspect.timeline.time_events import (
    cannot_decide,
    gap_ms,
    idle_interval_ms,
    last_time_ms,
)
from metaquorum.metadata.inspect.walk.states import FoundState, settle, state_at

SHOWN_ROWS = 3
"""Rows to show per section, without --all."""
_FEW_ROWS = {"changes": 2, "removed": 2, "under min isr": 2, "reassignments": 2}
_COLOURS = {CRITICAL: "red", WARNING_SEVERITY: "yellow"}
_EXIT_CODES = {CRITICAL: EXIT_CRITICAL, WARNING_SEVERITY: EXIT_WARNING}


SPAN = Checked("span", parse_span_ms)


@click.command(cls=LiveCommand)
@click.argument("paths", nargs=-1, required=True, type=PATH, metavar="PATH...")
@click.option(
    "--last", "last_ms", type=SPAN, metavar="12h", help="Only this much time before the log's last record."
)
@click.option(
    "--from", "start", type=POINT, metavar="OFFSET|OFFSET+|TIME", help="Only from this position on."
)
@click.option(
    "--to", "end", type=POINT, metavar="OFFSET|OFFSET+|TIME", help="Only up to this position, exclusive."
)
@click.option("--all", "show_all", is_flag=True, help="Show all rows of every section, not only the worst.")
@json_option
def summary(
    paths: tuple[str, ...],
    last_ms: int | None,
    start: Point | None,
    end: Point | None,
    show_all: bool,
    as_json: bool,
) -> int:
    """Summarize what happened on one screen.

    Shows leaders, unavailable brokers and partitions and for how long, and changes. The worst of each comes
    with its time and its offset, for a closer look with `log why` and `log timeline`. The logs of several
    nodes are compared and merged into one.
    """
    if last_ms is not None and start is not None:
        raise click.UsageError("give --last or --from, not both")
    refuse_swapped(start, end)
    complaints = Complaints()
    log, nodes = open_merged(paths)
    if log.is_checkpoint:
        raise Failure(f"{log.path} is a single state, not a history; give the log of the snapshot")
    if nodes is not None:
        report_nodes(nodes, complaints)
    try:
        log_found = _Found(log, nodes, complaints)
        log_found.read(_start(log, start, last_ms), end or END, counts=as_json)
    finally:
        clear_progress(log)
    for point in (start, end):
        if point is not None and (line := log_found.seen.outside(log.name, point)) is not None:
            print_problem(line)
    if as_json:
        echo_json(_json(log_found))
    else:
        for line in _screen(log_found, words_to_read(paths), show_all):
            click.echo(line)
        report_limits(log_found.seen.limits.coverage, log_found.seen.limits.shown)
    report_unknown(log_found.seen.limits.unknown)
    return log_exit_code(
        damaged=bool(complaints.count),
        uncovered=bool(log_found.seen.limits.coverage),
        unknown=bool(log_found.seen.limits.unknown),
        verdict=_EXIT_CODES.get(log_found.summary.severity, 0),
    )


def _start(log: MetadataLog, start: Point | None, last_ms: int | None) -> Point | None:
    if last_ms is None:
        return start
    ends_ms = last_time_ms(log)
    return None if ends_ms is None else Point(time_ms=ends_ms - last_ms)


class _Found:
    """One pass over a log: its sections and the facts around them."""

    def __init__(self, log: MetadataLog, nodes: NodesReport | None, complaints: Complaints) -> None:
        self.log = log
        self.nodes = nodes
        self._complaints = complaints
        self.seen = Seen()
        self.sections: list[Section] = []
        self.unsaid: list[str] = []

    def read(self, start: Point | None, end: Point, *, counts: bool) -> None:
        """Reads everything. Without `counts`, those of events that are routine are too low: no section has
        them."""
        log, seen, asked = self.log, self.seen, start
        if start is not None:
            start, shown_as = settle(log, start, first=True)
            seen.limits.place(shown_as)
        seen.limits.coverage.add(before_the_log(log, start))
        offset = None if start is None else start.offset
        first = None if offset is None else batch_at(log, offset)
        start_ms = (
            None if first is None else clock_of(log).time_ms(offset or 0, first.header.max_timestamp_ms)
        )
        self.summary = Summary(start, start_ms)
        seen.on_begin = self.summary.begin
        self.start = start
        self.is_part = not end.is_end
        interval_ms = idle_interval_ms(log)
        listed = events(
            log,
            self._complaints,
            end=end,
            gap_ms=gap_ms(interval_ms),
            seen=seen,
            shown=at_least(INFO),
            moves=counts,
            quiet_before=start,
        )
        for event in listed:
            self.summary.take(event)
        if asked is not None and start is not None and end.is_end:
            seen.note_behind(log, asked, start)
        self.sections = self.summary.sections = self.summary.finish()
        lost = lost_section(log, self.nodes, log.end_offset, self._time_at)
        if lost is not None:
            self.sections.insert(0, lost)
            self.summary.severity = CRITICAL
        self.at_end: FoundState = state_at(log, end, past_corruption=True)
        known = known_from(log)
        self.is_end_known = known is not None and known <= self.at_end.end_offset
        place = self.at_end.image.provenance
        self.to_ms = self._time_ms(place.offset - 1, place.timestamp_ms)
        self.from_offset, self.from_ms = self._begins()
        self.unsaid = cannot_decide(
            image=self.at_end.image,
            interval_ms=interval_ms,
            uncertain=self.summary.uncertain_fences,
            gaps=self.summary.counts["gap in time"],
            names_who=self.summary.names_who,
            has_records=self.seen.first_ms is not None,
            may_lack_votes=self.nodes is None and len(quorum_at(log, self.at_end.end_offset).voters) != 1,
        )

    def _time_at(self, offset: int) -> int:
        found = batch_at(self.log, offset)
        if found is None:
            return self.seen.last_ms or 0
        return self._time_ms(found.header.base_offset, found.header.max_timestamp_ms)

    def _begins(self) -> Place:
        """Where the events begin: the start of the requested range, or of the log."""
        first, first_ms = self.summary.begins, self.seen.first_ms
        if first_ms is not None:
            first_ms = self._time_ms(self.log.start_offset, first_ms)
        if self.start is None or self.start.is_end:
            return self.log.start_offset, self.to_ms if first_ms is None else first_ms
        if self.start.time_ms is not None:
            if first_ms is not None and self.start.time_ms < first_ms:
                return self.log.start_offset, first_ms  # the log starts later
            place = clock_of(self.log).place(self.start.time_ms, first=True)[0]
            return self.at_end.end_offset if place.offset is None else place.offset, self.start.time_ms
        offset = max(self.start.offset or 0, self.log.start_offset)
        found = batch_at(self.log, offset)
        if found is None:
            return offset, self.to_ms if first is None else first[1]
        return offset, self._time_ms(found.header.base_offset, found.header.max_timestamp_ms)

    def _time_ms(self, offset: int, stamp_ms: int) -> int:
        """The time by the log's clock."""
        return clock_of(self.log).time_ms(offset, stamp_ms)


def _screen(answer: _Found, where: tuple[str, ...], show_all: bool) -> Iterator[str]:
    width = terminal_width()
    times = _Times(answer)
    hidden = False
    for line in _head(answer, where):
        yield trimmed(line, width)
    verdict = trimmed(_verdict(answer.summary), width)
    yield click.style(verdict, fg=_COLOURS.get(answer.summary.severity), bold=True)
    for section in answer.sections:
        few = len(section.rows) if show_all else _FEW_ROWS.get(section.name, SHOWN_ROWS)
        part = f"; {few} shown" if few < len(section.rows) else ""
        hidden = hidden or bool(part)
        for line in _wrapped(f"{section.name}: {section.text}{part}", width):
            yield click.style(line, bold=True)
        for row in sorted(section.rows[:few], key=lambda row: row.offset):
            yield _coloured(trimmed(_row_line(row, times), width), row.severity)
    yield click.style("the log does not show:", bold=True)
    for line in answer.unsaid:
        yield trimmed(f"  {line}", width)
    to_offset = answer.at_end.end_offset if answer.is_part else None
    closer = next_words(
        answer.sections, answer.log, answer.nodes, where, to_offset, answer.seen.limits.coverage
    )
    if closer:
        yield f"next: {shlex.join(('metaquorum', 'log', *closer))}"
    if hidden:
        yield "      use --all to show all rows"


def _wrapped(text: str, width: int | None) -> list[str]:
    return [text] if width is None else textwrap.wrap(text, width, subsequent_indent="  ")


def _coloured(line: str, severity: str) -> str:
    return click.style(line, fg=_COLOURS[severity]) if severity in _COLOURS else line


def _head(answer: _Found, where: tuple[str, ...]) -> Iterator[str]:
    log, state = answer.log, answer.at_end
    identity = log.identity
    whose = f"cluster {identity.cluster_id}" if identity is not None and identity.cluster_id else "cluster -"
    if identity is not None and identity.node_id is not None:
        whose += f", node {identity.node_id}"
    yield " ".join(where) if answer.nodes is None else answer.log.path
    no_records = not (log.is_checkpoint or log.segments)
    covered = f"no records, a snapshot at {state.end_offset}" if no_records else ""
    yield f"{whose}, {covered or offsets_text(answer.from_offset, state.end_offset)}"
    if state.end_offset <= log.start_offset and not no_records:
        yield "the log holds no readable record"
        return
    begun, ended = utc_text(answer.from_ms), utc_text(max(answer.from_ms, answer.to_ms))
    ended = ended[11:] if begun[:11] == ended[:11] else ended
    image = state.image
    level = image.features.metadata_version
    version = f", {metadata_version_name(level)}" if answer.is_end_known and level is not None else ""
    lasted = f" to {ended} ({duration(max(0, answer.to_ms - answer.from_ms))})"
    yield f"{begun}{'' if no_records else lasted}{version}"
    unfenced = sum(not one.fenced for one in image.brokers.values())
    leader = answer.summary.leader
    leads = f"{leader} leads, " if leader is not None else ""
    if not answer.is_end_known:
        yield f"at the end: {leads}brokers and topics are not known"
        return
    yield (
        f"at the end: {leads}{unfenced} of {count(len(image.brokers), 'broker')} unfenced,"
        f" {count(len(image.topics), 'topic')}, {count(image.topics.partition_count, 'partition')}"
    )


_SECTIONS_SHOWN = {
    CRITICAL: (NAME_OF_LOST, "unclean elections", "total outages", "leaderless"),
    WARNING_SEVERITY: (
        "gaps in time",
        "directories failed",
        "replicas damaged",
        "under min isr",
        "quorum",
        "brokers",
    ),
}
"""Sections that the verdict names first, by its severity."""


def _verdict(summary: Summary) -> str:
    first = _SECTIONS_SHOWN.get(summary.severity, ())
    bad = {
        section.name: len(rows)
        for section in summary.sections
        if first and (rows := [row for row in section.rows if row.severity == summary.severity])
    }
    order = sorted(bad, key=lambda name: name not in first)
    named = ", ".join(f"{name} ({bad[name]})" for name in order)
    return f"worst: {summary.severity}" + (f": {named}" if named else "")


class _Times:
    """Formats times: without the date if all are of one day."""

    def __init__(self, answer: _Found) -> None:
        times = [answer.from_ms, answer.to_ms]
        times += [row.time_ms for section in answer.sections for row in section.rows]
        self._short = len({utc_text(time_ms)[:10] for time_ms in times}) == 1
        self.width = 12 if self._short else 19

    def text(self, time_ms: int) -> str:
        whole = utc_text(time_ms)
        return whole[11:23] if self._short else whole[:19].replace("T", " ")


def _row_line(row: Row, times: _Times) -> str:
    return f"  {times.text(row.time_ms):{times.width}}  {row.offset:>8}  {row.text}"


def _json(answer: _Found) -> dict[str, Any]:
    identity, seen, image = answer.log.identity, answer.seen, answer.at_end.image
    return {
        "path": answer.log.path,
        "cluster": None if identity is None else identity.cluster_id,
        "severity": answer.summary.severity,
        "fromOffset": answer.from_offset,
        "toOffset": answer.at_end.end_offset,
        "fromTime": answer.from_ms,
        "toTime": answer.to_ms,
        "atEnd": {
            "offset": answer.at_end.end_offset,
            "leader": answer.summary.leader,
            **(_state_json(image) if answer.is_end_known else dict.fromkeys(_state_json(image))),
        },
        "sections": [
            {
                "name": section.name,
                "severity": section.severity,
                "text": section.text,
                "figures": section.figures,
                "rows": [_row_json(row) for row in section.rows],
            }
            for section in answer.sections
        ],
        "events": dict(sorted(answer.summary.counts.items())),
        "cannotTell": answer.unsaid,
        "nodes": None if answer.nodes is None else nodes_json(answer.nodes),
        "unknownRecords": seen.limits.unknown,
        **limits_json(seen.limits.coverage, seen.limits.shown),
    }


def _state_json(image: MetadataImage) -> dict[str, Any]:
    return {
        "brokers": len(image.brokers),
        "unfencedBrokers": sum(not one.fenced for one in image.brokers.values()),
        "topics": len(image.topics),
        "partitions": image.topics.partition_count,
        "metadataVersion": image.features.metadata_version,
    }


def _row_json(row: Row) -> dict[str, Any]:
    made: dict[str, Any] = msgspec.to_builtins(row)
    return {
        "offset": made["offset"],
        "createTime": made["time_ms"],
        "entity": made["entity"],
        "severity": made["severity"],
        "spanMs": made["span_ms"],
        "text": made["text"],
    }


_FIRST = (NAME_OF_LOST, "unclean elections", "total outages", "leaderless")
_OF_QUORUM = ("quorum", "voters changed")
"""Sections whose rows are records about the quorum. Other sections use the quorum as
entity if they have no other."""
REMOVED = "removed"
"""The section of what cannot be undone: worth a look even if nothing failed."""


def next_words(
    sections: list[Section],
    log: MetadataLog,
    nodes: NodesReport | None,
    where: tuple[str, ...],
    to_offset: int | None,
    coverage: Coverage,
) -> tuple[str, ...]:
    """The words after `metaquorum log` for a closer look at the worst event: `why` for an entity that a
    record is about, otherwise `timeline` from there on; empty if there is nothing to look at. `where`: the
    paths or the address that was summarized, as given, up to `to_offset` (None: the log's end)."""
    name, row = _worst_row(sections)
    if row is None:
        return ()
    if name == NAME_OF_LOST:
        return ("check", *(where if nodes is None else (node.path for node in nodes.nodes)))
    log_words = where if nodes is None else _whole_node(nodes)
    is_cut = any(found.reason == MISSING and found.from_offset <= row.offset for found in coverage)
    if log_words and not is_cut and _is_explained(name, row):
        is_last = row.offset >= (log.end_offset if to_offset is None else to_offset)
        if is_last or batch_at(log, row.offset) is not None:
            range_words = (
                ()
                if is_last and to_offset is None
                else ("--at", str(to_offset) if is_last else f"{row.offset}+")
            )
            return ("why", *log_words, row.entity, *range_words)
    end = () if to_offset is None else ("--to", str(to_offset))
    return ("timeline", *where, "--from", str(row.offset), *end)


def _whole_node(nodes: NodesReport) -> tuple[str, ...]:
    """The path of a node that has everything that all nodes have together; empty if there is none."""
    begins = min(node.start_offset for node in nodes.nodes)
    for node in nodes.nodes:
        is_short = node.behind or node.departure or node.start_offset > begins
        if not (is_short or node.problems or node.lost):
            return (node.path,)
    return ()


def _is_explained(name: str, row: Row) -> bool:
    kind, _, rest = row.entity.partition("/")
    return bool(rest) and kind in ("topic", "broker") if row.entity != "quorum" else name in _OF_QUORUM


def _worst_row(sections: list[Section]) -> tuple[str, Row | None]:
    """The section and the row to look at first."""
    rows = [
        (section.name, row)
        for section in sections
        for row in section.rows
        if row.severity != INFO or section.name == REMOVED
    ]

    def rank(section_row: tuple[str, Row]) -> tuple[int, int, int]:
        name, row = section_row
        place = _FIRST.index(name) if name in _FIRST else len(_FIRST)
        return SEVERITIES.index(row.severity), -place, row.span_ms or 0

    return max(rows, key=rank) if rows else ("", None)
