"""Formats records, fields and changes for the shell."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from metaquorum.cli.log.input.options import unknown_lines
from metaquorum.cli.log.time_text import fields_text, record_text, value_text
from metaquorum.cli.text.output import shows_secrets, utc_text
from metaquorum.metadata.inspect.entities.diff import ADDED, REMOVED, ChangeCause, EntityChange
from metaquorum.metadata.inspect.timeline.event_groups import count
from metaquorum.metadata.inspect.walk.states import FoundState, WalkStep
from metaquorum.metadata.records.batch_cause import cause_in
from metaquorum.metadata.records.batches import DecodedRecord
from metaquorum.metadata.text.cause_text import asked_text
from metaquorum.metadata.text.dump import payload_json

SHOWN_OF_STEP = 20
"""Records and changes of one step to show; the rest are counted."""
_SIGNS = {ADDED: "+", REMOVED: "-"}


def record_line(decoded: DecodedRecord) -> str:
    """A record on one line: offset, type and version, fields."""
    payload = payload_json(decoded.record, decoded.version, secrets=shows_secrets())
    shown = fields_text(payload["data"])
    return f"{decoded.offset:>8}  {payload['type']} v{payload['version']}  {shown}".rstrip()


def change_line(change: EntityChange) -> str:
    """One changed entity: `+` added, `-` removed, `~` changed; then its fields, and the record."""
    cause = cause_text(change.cause)
    if change.kind == ADDED:
        shown = " ".join(f"{one.name}={value_text(one.new)}" for one in change.fields)
    elif change.kind == REMOVED:
        shown = ""
    else:
        shown = "  ".join(
            f"{one.name} {value_text(one.old)} -> {value_text(one.new)}" for one in change.fields
        )
    return f"{_SIGNS.get(change.kind, '~')} {change.entity}  {shown}".rstrip() + cause


def cause_text(cause: ChangeCause | None) -> str:
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
