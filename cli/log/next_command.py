"""Chooses the command that a summary ends with, for a closer look at its worst event.

The choice of the row and of the tool: `why` for an entity that a record is about, otherwise `timeline` from
there on.
"""

from __future__ import annotations

from metaquorum.metadata.inspect.causes.rule import INFO, SEVERITIES
from metaquorum.metadata.inspect.log.coverage import MISSING, Coverage
from metaquorum.metadata.inspect.log.log import MetadataLog
from metaquorum.metadata.inspect.log.places import batch_at
from metaquorum.metadata.inspect.nodes.merge import NodesReport
from metaquorum.metadata.inspect.summary.losses import NAME as NAME_OF_LOST
from metaquorum.metadata.inspect.summary.sections import Row, Section

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
    """The words after `metaquorum log`; empty if there is nothing to look at. `where`: the paths or the
    address that was summarized, as given, up to `to_offset` (None: the log's end)."""
    name, row = _worst_row(sections)
    if row is None:
        return ()
    if name == NAME_OF_LOST:
        return ("check", *(where if nodes is None else (node.path for node in nodes.nodes)))
    one = where if nodes is None else _whole_node(nodes)
    is_cut = any(found.reason == MISSING and found.from_offset <= row.offset for found in coverage)
    if one and not is_cut and _is_explained(name, row):
        is_last = row.offset >= (log.end_offset if to_offset is None else to_offset)
        if is_last or batch_at(log, row.offset) is not None:
            at = (
                ()
                if is_last and to_offset is None
                else ("--at", str(to_offset) if is_last else f"{row.offset}+")
            )
            return ("why", *one, row.entity, *at)
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

    def rank(told: tuple[str, Row]) -> tuple[int, int, int]:
        name, row = told
        place = _FIRST.index(name) if name in _FIRST else len(_FIRST)
        return SEVERITIES.index(row.severity), -place, row.span_ms or 0

    return max(rows, key=rank) if rows else ("", None)
