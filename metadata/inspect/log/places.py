"""What is shown for a place that a user named: batches and metadata transactions are atomic.

The rule that all tools share: a place inside a batch (or a transaction, KIP-868) shows the state before the
batch (or transaction), and the answer says so. `N+` is the first place that shows the effect of the record at
offset N: after its batch, and after the end of its transaction.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from metaquorum.metadata.errors import InspectError
from metaquorum.metadata.inspect.log.coverage import Coverage
from metaquorum.metadata.inspect.log.log import MetadataLog
from metaquorum.metadata.inspect.log.points import Point
from metaquorum.storage.batches.batch import RecordBatch

BATCH, TRANSACTION = "batch", "transaction"


class ShownAs(msgspec.Struct, frozen=True, kw_only=True):
    """A place that cannot be shown as requested. `asked` is the requested offset, `offset` the state shown
    instead. `first` and `last` are the ends (inclusive) of the `atomic` unit (BATCH or TRANSACTION) around
    it; `last` is None for a transaction whose end was not read."""

    asked: int
    offset: int
    atomic: str
    first: int
    last: int | None = None

    @property
    def text(self) -> str:
        """`batch 998 to 1017 is atomic: shown as of 998; 1003+ is the state after it`."""
        if self.atomic == BATCH:
            what, inside = f"batch {self.first} to {self.last}", self.asked
        else:
            what, inside = f"the metadata transaction that begins at {self.first}", self.first
        return f"{what} is atomic: shown as of {self.offset}; {inside}+ is the state after it"

    def tree(self) -> dict[str, Any]:
        """As plain data, the same for all tools."""
        return {
            "asked": self.asked,
            "offset": self.offset,
            "atomic": self.atomic,
            "firstOffset": self.first,
            "lastOffset": self.last,
            "text": self.text,
        }


@dataclass(slots=True)
class Limits:
    """The limits of an answer that is delivered in pieces: ranges it does not cover, places shown as others,
    and the number of records from a newer version."""

    coverage: Coverage = field(default_factory=Coverage)
    shown: list[ShownAs] = field(default_factory=list)
    unknown: int = 0

    def place(self, shown: ShownAs | None) -> None:
        """Records how a place is shown, if not as requested. A transaction takes precedence
        over a batch in it."""
        if shown is None or shown in self.shown:
            return
        if shown.atomic == TRANSACTION:
            self.shown = [one for one in self.shown if one.atomic != BATCH or one.offset < shown.offset]
        self.shown.append(shown)


def batch_at(log: MetadataLog, offset: int) -> RecordBatch | None:
    """The batch that holds `offset`; None if there is none or it cannot be read."""
    for found in log.batches(offset):
        if isinstance(found, RecordBatch) and found.header.next_offset > offset:
            return found if found.header.base_offset <= offset else None
    return None


def inside_batch(log: MetadataLog, point: Point) -> ShownAs | None:
    """What is shown for an offset inside a batch; None for any other place."""
    if point.offset is None or point.after or log.is_checkpoint:
        return None
    batch = batch_at(log, point.offset)
    if batch is None or batch.header.base_offset == point.offset:
        return None
    first, last = batch.header.base_offset, batch.header.next_offset - 1
    return ShownAs(asked=point.offset, offset=first, atomic=BATCH, first=first, last=last)


def behind_batch(log: MetadataLog, point: Point) -> int:
    """The offset after the batch that holds the record of `N+`. Raises InspectError if there is none."""
    offset = point.offset or 0
    batch = batch_at(log, offset)
    if batch is None:
        raise InspectError(
            f"{log.name} has no record at offset {offset}, so there is no state after it; give the offset of"
            " a record, as log dump and log timeline print it"
        )
    return batch.header.next_offset
