"""Selects records by type, entity, offset and time, as the user asked for.

What matches: bounds are inclusive, times are Unix ms. `SelectedRecords.past` says when nothing more can
match, so that a reader stops early.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from metaquorum.metadata.inspect.log.clock import clock_of
from metaquorum.metadata.inspect.log.coverage import ShownAs
from metaquorum.metadata.inspect.log.entities import entity_problem, is_below
from metaquorum.metadata.inspect.log.log import MetadataLog
from metaquorum.metadata.records.batches import DecodedRecord
from metaquorum.metadata.records.schema import TYPE_NAMES
from metaquorum.storage.batches.format import BatchHeader

# Kafka's name of a message, if it differs from the name of its type.
_KAFKAS_MESSAGES = {"VotersRecord": "KRAFT_VOTERS"}


class SelectedRecords(msgspec.Struct, frozen=True, kw_only=True):
    """The selection. Empty sets and None select everything."""

    types: frozenset[str] = frozenset()
    entities: tuple[str, ...] = ()
    from_offset: int | None = None
    to_offset: int | None = None
    from_ms: int | None = None
    to_ms: int | None = None
    shown_below: int = 0
    """Below this offset, the log's clock decided which records match; from it on, timestamps decide."""

    def wants(self, decoded: DecodedRecord, entities: Iterable[str]) -> bool:
        """Whether a record is selected."""
        return (
            (not self.types or decoded.record.type_name in self.types)
            and (self.from_offset is None or decoded.offset >= self.from_offset)
            and (self.to_offset is None or decoded.offset <= self.to_offset)
            and (self.from_ms is None or decoded.timestamp_ms >= self.from_ms)
            and (
                self.to_ms is None or decoded.offset < self.shown_below or decoded.timestamp_ms <= self.to_ms
            )
            and (
                not self.entities
                or any(is_below(one, wanted) for one in entities for wanted in self.entities)
            )
        )

    def wants_batch(self, header: BatchHeader) -> bool:
        """Whether a batch may hold selected records."""
        return not (
            (self.from_offset is not None and header.last_offset < self.from_offset)
            or (self.to_offset is not None and header.base_offset > self.to_offset)
            or (self.from_ms is not None and header.max_timestamp_ms < self.from_ms)
            or (self.to_ms is not None and header.base_timestamp_ms > self.to_ms)
        )

    def settled(self, log: MetadataLog, *, grows: bool = False) -> tuple[SelectedRecords, list[ShownAs]]:
        """The same selection by offsets, if the log's clock jumps, and what to report of that. In a log that
        `grows`, later records match by their timestamps."""
        if log.is_checkpoint or (self.from_ms is None and self.to_ms is None) or clock_of(log).is_steady:
            return self, []
        settled, notes = replace(self, from_ms=None, to_ms=None), []
        if self.from_ms is not None:
            point, shown = clock_of(log).place(self.from_ms, first=True)
            settled = replace(settled, from_offset=max(point.offset or 0, self.from_offset or 0))
            notes.append(shown)
        if self.to_ms is not None:
            point, shown = clock_of(log).place(self.to_ms)
            last = (point.offset or 0) - 1
            if grows and last + 1 == clock_of(log).end_offset:
                settled = replace(settled, to_ms=self.to_ms, shown_below=last + 1)
            else:
                settled = replace(
                    settled, to_offset=last if self.to_offset is None else min(last, self.to_offset)
                )
            notes.append(shown)
        return settled, [one for one in notes if one is not None]

    @property
    def is_everything(self) -> bool:
        """Whether everything is selected."""
        return self == EVERYTHING

    def nothing_text(self) -> str:
        """The first reason in the selection why it may have matched nothing."""
        low, high = self.from_offset, self.to_offset
        if low is not None and high is not None and low > high:
            return f"--from-offset {low} is past --to-offset {high}; swap them"
        if self.from_ms is not None and self.to_ms is not None and self.from_ms > self.to_ms:
            return "--from-time is past --to-time; swap them"
        wanted = [*(f"type {name}" for name in sorted(self.types)), *self.entities]
        bounds = any(one is not None for one in (low, high, self.from_ms, self.to_ms))
        where = " in that range" if bounds else ""
        if not wanted:
            return "the log holds none in that range"
        return f"{' and '.join(wanted)} never occurs{where}; remove a filter to see what does"

    def past(self, next_offset: int) -> bool:
        """Whether every selected offset is before `next_offset`. Times do not count: clocks run backwards."""
        return self.to_offset is not None and next_offset > self.to_offset

    @property
    def needs_names(self) -> bool:
        """Whether records before `from_offset` must be read to learn the names of topics."""
        return any(wanted.startswith(("topic", "config")) for wanted in self.entities)


EVERYTHING = SelectedRecords()


def record_type(text: str) -> str:
    """The full name of a record type, from any spelling: TOPIC_RECORD, topic, TopicRecord, and Kafka's names
    of control records (LeaderChangeMessage, SnapshotHeader, VotersRecord). Raises ValueError."""
    by_letters = {_letters(name): name for name in TYPE_NAMES}
    by_letters |= {_letters(message): name for message, name in _KAFKAS_MESSAGES.items()}
    wanted = _letters(text)
    if wanted in by_letters:
        return by_letters[wanted]
    near = difflib.get_close_matches(wanted, by_letters, n=3)
    close = list(dict.fromkeys(by_letters[at] for at in near))
    hint = f"; did you mean {' or '.join(close)}?" if close else f"; choose one of {', '.join(TYPE_NAMES)}"
    raise ValueError(f"there is no record type {text!r}{hint}")


def _letters(name: str) -> str:
    """The letters that all spellings of a type share."""
    plain = name.lower().replace("_", "").replace("-", "")
    return plain.removesuffix("record").removesuffix("message")


def entity_path(text: str) -> str:
    """A checked entity path, without a slash at its end. Raises ValueError, which
    says what a path looks like."""
    text = text.removesuffix("/") if text.count("/") > 1 else text
    problem = entity_problem(text)
    if problem is not None:
        raise ValueError(problem)
    return text
