"""Formats states, differences and histories: text for people, one JSON object per line for programs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from metaquorum.cli.log.input.options import unknown_lines
from metaquorum.cli.text.output import fits_well, json_line, secret_text, shows_secrets, table_lines, utc_text
from metaquorum.metadata.inspect.entities.diff import (
    ADDED,
    CHANGED,
    REMOVED,
    ChangeCause,
    EntityChange,
)
from metaquorum.metadata.inspect.entities.history import Span
from metaquorum.metadata.inspect.entities.views import Fields
from metaquorum.metadata.inspect.timeline.event_groups import count
from metaquorum.metadata.inspect.walk.states import FoundState, WalkStep
from metaquorum.metadata.records.batch_cause import cause_in
from metaquorum.metadata.records.batches import DecodedRecord
from metaquorum.metadata.secrets import Redacted
from metaquorum.metadata.text.cause_text import asked_text, brief_text
from metaquorum.metadata.text.dump import payload_json

_SIGNS = {ADDED: "+", CHANGED: "~", REMOVED: "-"}
_LISTED_BY_KEY = ("config", "quota")
"""Kinds whose fields users name: one row per field instead of a column."""


_NESTED = {dict, list}


def value_text(value: Any) -> str:
    """A field's value on a line: `-` for None, lists in brackets, otherwise as in JSON."""
    match value:
        case None:
            return "-"
        case Redacted():
            return secret_text(value)
        case bool():
            return "true" if value else "false"
        case list() if _NESTED.isdisjoint(map(type, value)):
            return "[" + ",".join(map(str, value)) + "]"
        case dict() | list():
            return json_line(value)
    return str(value)


def fields_text(fields: Fields) -> str:
    """`leader=1 isr=[1,2]`."""
    return " ".join(f"{name}={value_text(value)}" for name, value in fields.items())


def cause_text(cause: ChangeCause | None) -> str:
    """Offset, time, epoch and type of the record."""
    if cause is None:
        return "by a record that is not in this log, or is before the oldest snapshot, which has its effect"
    place = f"offset {cause.offset}  {utc_text(cause.time_ms)}  epoch {cause.epoch}  {cause.type_name}"
    return place if cause.asked is None else f"{place}  asked: {asked_text(cause.asked)}"


def record_text(cause: ChangeCause) -> str:
    """Offset and type of the record, and briefly which request caused it."""
    asked = "" if cause.asked is None else f", {brief_text(cause.asked)}"
    return f"{cause.offset} {cause.type_name}{asked}"


def change_text(change: EntityChange) -> Iterator[str]:
    """A line for the entity, and one per field that changed."""
    sign = _SIGNS[change.kind]
    if change.kind != CHANGED:
        shown = {one.name: one.new if change.kind == ADDED else one.old for one in change.fields}
        yield f"{sign} {change.entity}  {fields_text(shown)}".rstrip()
        yield from _by("    ", change.cause, change.old_cause)
        return
    yield f"{sign} {change.entity}"
    for field in change.fields:
        yield f"    {field.name}: {value_text(field.old)} -> {value_text(field.new)}"
        yield from _by("        ", field.cause, field.old_cause)


def _by(indent: str, cause: ChangeCause | None, old_cause: ChangeCause | None) -> Iterator[str]:
    if old_cause is not None:
        yield f"{indent}in A by {cause_text(old_cause)}"
        if cause is not None:
            yield f"{indent}in B by {cause_text(cause)}"
        return
    yield f"{indent}by {cause_text(cause)}" if cause else f"{indent}{cause_text(None)}"


def span_text(span: Span) -> str:
    """Start, end, entity, fields, and the record that began the span."""
    end = "now" if span.to_offset is None else str(span.to_offset)
    until = "" if span.to_ms is None else utc_text(span.to_ms)
    began = utc_text(span.from_ms) if span.from_ms >= 0 else "-"
    by = "the state at the start" if span.cause is None else f"by {record_text(span.cause)}"
    place = f"{span.from_offset:>8} .. {end:<8}  {began} .. {until:<24}"
    return f"{place}  {span.entity}  {fields_text(span.fields)}  ({by})"


def entity_tables(rows: Iterable[tuple[str, Fields]], width: int | None = None) -> Iterator[str]:
    """One table per kind of entity, with a blank line between. A single entity whose row would be longer than
    `width` (default 80) has one line per field instead, and so have a few entities whose columns would be cut
    too short; then nothing is cut."""
    kinds: dict[str, list[tuple[str, Fields]]] = {}
    for path, fields in rows:
        kinds.setdefault(_kind(path), []).append((path, fields))
    for at, (kind, listed) in enumerate(kinds.items()):
        if at:
            yield ""
        if kind in _LISTED_BY_KEY:
            lines = [(path, key, value) for path, fields in listed for key, value in fields.items()]
            yield from table_lines(("ENTITY", "KEY", "VALUE"), lines, width)
            continue
        names = list(dict.fromkeys(name for _, fields in listed for name in fields))
        cells = [[path, *(value_text(fields.get(name)) for name in names)] for path, fields in listed]
        columns = ("ENTITY", *(name.upper() for name in names))
        if _is_better_below(columns, cells, width):
            for number, (path, fields) in enumerate(listed):
                yield from ("",) if number else ()
                yield from _field_lines(path, fields, width or _USUAL_WIDTH)
        else:
            yield from table_lines(columns, cells, width)


_USUAL_WIDTH = 80
_FEW = 20
"""Up to this many entities may have one line per field."""


def _is_better_below(columns: tuple[str, ...], cells: list[list[str]], width: int | None) -> bool:
    """Whether one line per field is more readable than a table."""
    if len(cells) == 1:
        return max(map(len, table_lines(columns, cells))) > (width or _USUAL_WIDTH)
    return width is not None and len(cells) <= _FEW and not fits_well(columns, cells, width)


def _field_lines(path: str, fields: Fields, width: int) -> Iterator[str]:
    """One entity, one line per field. A longer value continues on the next line."""
    rows = [("entity", path)]
    for name, value in fields.items():
        if isinstance(value, dict) and value:
            rows += [(f"{name} {key}", _nested_text(one)) for key, one in value.items()]
        else:
            rows.append((name, value_text(value)))
    names = max(len(name) for name, _ in rows)
    room = max(20, width - names - 2)
    for name, text in rows:
        first, *rest = _split(text, room)
        yield f"{name:{names}}  {first}".rstrip()
        yield from (f"{'':{names}}  {one}" for one in rest)


def _nested_text(value: Any) -> str:
    return fields_text(value) if isinstance(value, dict) else value_text(value)


def _split(text: str, room: int) -> list[str]:
    """Pieces of a value that fit, split after commas and blanks if possible."""
    pieces = []
    while len(text) > room:
        cut = max(text.rfind(",", 0, room), text.rfind(" ", 0, room)) + 1 or room
        pieces.append(text[:cut].rstrip())
        text = text[cut:]
    return [*pieces, text]


def _kind(path: str) -> str:
    """The kind of an entity. Partitions have other columns than their topics."""
    kind, _, rest = path.partition("/")
    return "partition" if kind == "topic" and "/" in rest else kind


SHOWN_OF_STEP = 20
"""Records and changes of one step to show; the rest are counted."""


def record_line(decoded: DecodedRecord) -> str:
    """A record on one line: offset, type and version, fields."""
    payload = payload_json(decoded.record, decoded.version, secrets=shows_secrets())
    shown = fields_text(payload["data"])
    return f"{decoded.offset:>8}  {payload['type']} v{payload['version']}  {shown}".rstrip()


def change_line(change: EntityChange) -> str:
    """One changed entity: `+` added, `-` removed, `~` changed; then its fields, and the record."""
    cause = _record_of(change.cause)
    if change.kind == ADDED:
        shown = " ".join(f"{one.name}={value_text(one.new)}" for one in change.fields)
    elif change.kind == REMOVED:
        shown = ""
    else:
        shown = "  ".join(
            f"{one.name} {value_text(one.old)} -> {value_text(one.new)}" for one in change.fields
        )
    return f"{_SIGNS[change.kind]} {change.entity}  {shown}".rstrip() + cause


def _record_of(cause: ChangeCause | None) -> str:
    """`  (4320 FENCE_BROKER_RECORD)`; empty if no record is known."""
    return "" if cause is None else f"  ({record_text(cause)})"


def step_head(step: WalkStep) -> str:
    """The batch on one line: offsets, time, leader epoch, and its cause."""
    last = step.next_offset - 1
    offsets = f"{step.offset}" if last == step.offset else f"{step.offset}-{last}"
    head = f"{offsets}  {utc_text(step.time_ms)}  epoch {step.epoch}  {count(len(step.records), 'record')}"
    asked = cause_in(step.records[0].record) if step.records else None
    return head if asked is None else f"{head}  asked: {asked_text(asked)}"


def limit_lines(*states: FoundState) -> Iterator[str]:
    """What states do not cover, and places that are shown as others."""
    for state in states:
        if state.shown is not None:
            yield state.shown.text
        yield from (f"not covered: {one.line}" for one in state.coverage)
        yield from unknown_lines(state.unknown)


def bounded(lines: Iterable[str], more: str) -> Iterator[str]:
    """The first SHOWN_OF_STEP lines, and the number of those left out."""
    hidden = 0
    for number, line in enumerate(lines):
        if number < SHOWN_OF_STEP:
            yield line
        else:
            hidden += 1
    if hidden:
        yield f"  ... and {hidden} {more}"
