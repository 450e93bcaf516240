"""Selects records by type, time and offset, and batches that need not be decoded."""

from __future__ import annotations

import difflib

import msgspec

from metaquorum.metadata.records.schema import TYPE_NAMES
from metaquorum.storage.batches.batch import BatchHeader


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """The selection. Bounds are inclusive, times are Unix ms. None and an empty set select everything."""

    types: tuple[str, ...] = ()
    from_ms: int | None = None
    to_ms: int | None = None
    from_offset: int | None = None
    to_offset: int | None = None
    secrets: bool = False
    """Whether secrets are shown (`metadata.secrets`). Does not affect the selection."""

    def may_hold(self, header: BatchHeader) -> bool:
        """Whether a batch may have a selected record, by its header."""
        low = min(header.base_timestamp_ms, header.max_timestamp_ms)
        high = max(header.base_timestamp_ms, header.max_timestamp_ms)
        return (
            (self.from_ms is None or high >= self.from_ms)
            and (self.to_ms is None or low <= self.to_ms)
            and (self.from_offset is None or header.next_offset > self.from_offset)
            and (self.to_offset is None or header.base_offset <= self.to_offset)
        )

    def wants(self, type_name: str, offset: int, timestamp_ms: int) -> bool:
        """Whether a record is selected."""
        return (
            (not self.types or type_name in self.types)
            and (self.from_ms is None or timestamp_ms >= self.from_ms)
            and (self.to_ms is None or timestamp_ms <= self.to_ms)
            and (self.from_offset is None or offset >= self.from_offset)
            and (self.to_offset is None or offset <= self.to_offset)
        )

    @property
    def wants_all(self) -> bool:
        """Whether every record is selected."""
        return self == Selection(secrets=self.secrets)


def type_named(text: str) -> str:
    """The full name of a record type: topic, TOPIC_RECORD and topic-record are one. Raises ValueError."""
    wanted = text.strip().upper().replace("-", "_")
    for name in (wanted, wanted + "_RECORD"):
        if name in TYPE_NAMES:
            return name
    short = {name.removesuffix("_RECORD"): name for name in TYPE_NAMES}
    close = [short[at] for at in difflib.get_close_matches(wanted.removesuffix("_RECORD"), short, n=3)]
    hint = f"; did you mean {' or '.join(close)}?" if close else f"; choose one of {', '.join(TYPE_NAMES)}"
    raise ValueError(f"there is no record type {text!r}{hint}")
