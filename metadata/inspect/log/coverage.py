"""What an answer did not cover, as ranges of offsets with the reason, and where a log's state is known.

The form that all tools share: they add `Uncovered` values to a `Coverage`. Text output prints each as a line,
JSON has them under `uncovered`, and any of them changes the exit code.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from metaquorum.metadata.errors import InspectError
from metaquorum.metadata.inspect.log.log import MetadataLog
from metaquorum.metadata.inspect.log.points import Point
from metaquorum.storage.batches.batch import RecordBatch

STATE_UNKNOWN = "state-unknown"
"""The records were read, but no snapshot has the state before them; whatever needs one is not reported."""
NOT_IN_LOG = "not-in-log"
"""Requested, but not in the log: trimmed, or past the end."""
MISSING = "missing"
"""Records in the middle of the log are lost: a segment or batch is missing or cannot be read."""
NOT_LOOKED_AT = "not-looked-at"
"""The records exist, but the answer stopped before them, for example at missing ones."""


class Uncovered(msgspec.Struct, frozen=True, kw_only=True):
    """Offsets from `from_offset` up to but not including `to_offset` (None: the log's end, wherever that is)
    that the answer covers partly or not at all. `reason` is one of the names above, `text` explains it and
    says what to do, `path` is the log's."""

    from_offset: int
    to_offset: int | None
    reason: str
    text: str
    path: str = ""

    @property
    def line(self) -> str:
        """`offsets 10 to 19 (state-unknown): ...`."""
        return f"{offsets_text(self.from_offset, self.to_offset)} ({self.reason}): {self.text}"

    def tree(self) -> dict[str, Any]:
        """As plain data, the same for all tools."""
        return {
            "path": self.path,
            "fromOffset": self.from_offset,
            "toOffset": self.to_offset,
            "reason": self.reason,
            "text": self.text,
        }


@dataclass(slots=True)
class Coverage:
    """Collects what one answer did not cover. False while empty."""

    ranges: list[Uncovered] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.ranges)

    def __iter__(self) -> Iterator[Uncovered]:
        return iter(self.ranges)

    def add(self, uncovered: Uncovered | None) -> None:
        """Adds one. Adjacent ranges with the same reason and text merge, so nothing is reported twice."""
        if uncovered is None or (
            uncovered.to_offset is not None and uncovered.to_offset <= uncovered.from_offset
        ):
            return
        last = self.ranges[-1] if self.ranges else None
        same = last is not None and (last.path, last.reason, last.text) == (
            uncovered.path,
            uncovered.reason,
            uncovered.text,
        )
        if last is not None and same and last.to_offset == uncovered.from_offset:
            self.ranges[-1] = msgspec.structs.replace(last, to_offset=uncovered.to_offset)
        elif uncovered not in self.ranges:
            self.ranges.append(uncovered)

    def extend(self, several: Iterable[Uncovered]) -> None:
        for one in several:
            self.add(one)

    def tree(self) -> list[dict[str, Any]]:
        """As plain data: the value of `uncovered`."""
        return [one.tree() for one in self.ranges]


def offsets_text(start: int, end: int | None) -> str:
    """The offsets from `start` up to but not including `end`, in words; both offsets shown are included."""
    if end is None:
        return f"offsets from {start} on"
    if end <= start:
        return f"no offset from {start} on"
    return f"offset {start}" if end == start + 1 else f"offsets {start} to {end - 1}"


def known_from(log: MetadataLog) -> int | None:
    """The first offset at which the log's state is known: 0, or the end of its oldest whole snapshot that is
    not before its first record. None if there is neither."""
    base = log.start_offset
    if base == 0 or log.is_checkpoint:
        return base
    return next(
        (found.offset for found in log.snapshots() if found.offset >= base and log.is_whole(found)), None
    )


def before_the_state(log: MetadataLog, start: Point | None, end: Point, what: str) -> Uncovered | None:
    """The range between `start` (None: the log's first record) and `end` whose records have no known state
    before them, for a tool that needs one. `what` says what the answer lacks. None if there is no such range.

    A time counts as a place with known state: the code that resolves it checks that.
    """
    known_start = known_from(log)
    first = log.start_offset
    if start is not None:
        first = first if start.offset is None else max(first, start.offset)
    if known_start is not None and (first >= known_start or (start is not None and start.offset is None)):
        return None
    last = known_start if known_start is not None else end.offset
    if end.offset is not None and last is not None:
        last = min(last, end.offset)
    begins = f"the log begins at offset {log.start_offset}"
    if known_start is None:
        why = f"{begins}, and no snapshot beside it has the earlier state; copy one from another node"
    else:
        why = f"{begins}, and its oldest snapshot ends at {known_start}; from there on everything is known"
    return Uncovered(
        from_offset=first, to_offset=last, reason=STATE_UNKNOWN, text=f"{what}; {why}", path=log.path
    )


def behind_the_log(log: MetadataLog, end: Point, from_offset: int | None = None) -> Uncovered | None:
    """The range between the log's end (`from_offset`, if the caller knows it) and a later whole snapshot that
    is not past `end`; None if there is none. A snapshot holds committed records only, so the log lost these.
    """
    if not log.is_directory or not log.segments or not (snapshots := log.snapshots()):
        return None
    start = log.end_offset if from_offset is None else from_offset
    if snapshots[-1].offset <= start or (end.offset is not None and end.offset <= start):
        return None
    newest = next((at for at in reversed(snapshots) if at.offset > start and log.is_whole(at)), None)
    if newest is None or (end.offset is not None and newest.offset > end.offset):
        return None
    if end.time_ms is not None and log.snapshot(newest).snapshot_timestamp_ms() > end.time_ms:
        return None
    text = (
        f"the log ends before them, but its snapshot of offset {newest.offset} holds their result: committed"
        " records are lost here; read them from another node's log"
    )
    return Uncovered(from_offset=start, to_offset=newest.offset, reason=MISSING, text=text, path=log.path)


def before_the_log(log: MetadataLog, start: Point | None) -> Uncovered | None:
    """The range between `start` and the log's first record; None if it was not requested. With snapshots but
    no segment, everything before the newest snapshot."""
    first = log.start_offset
    if log.is_checkpoint:
        return None
    if not log.segments:
        asked = 0 if start is None else start.offset or 0
        text = (
            "there are snapshots and no .log segment: no record can be read; copy the segments from the node"
        )
        return Uncovered(from_offset=asked, to_offset=first, reason=NOT_IN_LOG, text=text, path=log.path)
    if start is None or start.offset is None or start.offset >= first:
        return None
    text = f"the log begins at offset {first}: earlier records were deleted, or are on another node"
    return Uncovered(from_offset=start.offset, to_offset=first, reason=NOT_IN_LOG, text=text, path=log.path)


# What is shown for a place that a user named: batches and metadata transactions are atomic.
#
# The rule that all tools share: a place inside a batch (or a transaction, KIP-868) shows the state before the
# batch (or transaction), and the answer says so. `N+` is the first place that shows the effect of the record
# at offset N: after its batch, and after the end of its transaction.

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
