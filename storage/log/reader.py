"""Reading a log without being its writer: no lock, no writes, bounded memory.

It follows a log that another process appends to and never returns an incomplete batch.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import pairwise
from operator import itemgetter
from typing import Protocol, runtime_checkable

import msgspec

from metaquorum.storage.batches.batch import (
    HEADER_BYTES,
    LENGTH_OVERHEAD_BYTES,
    MAGIC,
    RecordBatch,
    batch_problem,
    header_problems,
    hop_headers,
    iter_batches,
    parse_header,
)
from metaquorum.storage.disk.interface import Disk, DiskFile, join, name_of
from metaquorum.storage.errors import (
    CorruptLogError,
    FileMissingError,
    LogDeletedError,
    LogTruncatedError,
    NotALogError,
)
from metaquorum.storage.log.recovery import MAX_READABLE_BATCH_BYTES, find_valid_batch, load_recovery_point
from metaquorum.storage.log.segment import list_segments, parse_segment_name, segment_name

WINDOW_BYTES = 1024 * 1024
_FIRST_BYTES = 64 * 1024
"""How much is read at first where reading begins in the middle, and then twice as much: often little is
wanted."""
_PLACE_BYTES = 128 * 1024
"""How far apart the places are that are remembered."""
_ADVICE = "see the rest with `metaquorum log dump`; for recovery see 'Damaged or lost' in docs/operations.md"


class Damage(msgspec.Struct, frozen=True, kw_only=True):
    """Something wrong at byte `position` of `file`; `offset` is the one expected there."""

    file: str
    position: int
    offset: int
    reason: str


@runtime_checkable
class PlacedFile(Protocol):
    """A segment whose batches can be found without reading those before them."""

    def place_before(self, offset: int) -> tuple[int, int, int] | None:
        """(position, offset, leader epoch before it) of a batch at or before the one that holds `offset`,
        to which the headers lead without a break; None if no such place is known."""


class KnownPlaces:
    """Where batches begin in the segments of a log, as far as readers have passed them: then a reader that
    begins in the middle need not hop over all headers before."""

    def __init__(self) -> None:
        self._places: dict[str, list[tuple[int, int, int]]] = {}

    def remember(self, name: str, position: int, offset: int, epoch: int) -> None:
        """A batch to which the headers of a segment lead without a break; `epoch` is the one before it."""
        places = self._places.setdefault(name, [])
        if position >= (places[-1][0] if places else 0) + _PLACE_BYTES:
            places.append((position, offset, epoch))

    def before(self, name: str, offset: int) -> tuple[int, int, int] | None:
        """As `PlacedFile.place_before`. The segment may have changed since."""
        places = self._places.get(name, [])
        at = bisect_right(places, offset, key=itemgetter(1)) - 1
        return places[at] if at >= 0 and places[at][1] <= offset else None


class LogReader:
    """Batches of a log in order.

    Iterating yields what is there now; `poll()` returns what has been added since. With `tolerant`, problems
    are returned as `Damage` values between the batches, and reading continues where it can: an offset gap or
    a wrong count precedes the batch that it concerns, which is returned as it was read. Otherwise damage
    raises CorruptLogError. A torn tail (an incomplete batch, or bytes that are not a batch and have none
    after them) is not damage for a reader of a live log: it waits there, and `tail_problem()` returns what it
    waits at.
    """

    def __init__(
        self,
        disk: Disk,
        path: str,
        *,
        tolerant: bool = False,
        start_offset: int | None = None,
        places: KnownPlaces | None = None,
    ) -> None:
        """Checks `path` without opening files: raises NotALogError if it is not a log, FileMissingError if it
        does not exist.

        With `start_offset`, reading begins with the batch that contains it; earlier segments are not opened.
        `places` are known from earlier readers of the same log.
        """
        self._disk = disk
        self._path = path
        self._tolerant = tolerant
        self._is_directory = disk.is_directory(path)
        self._skip_below = start_offset or 0
        self._hops = tolerant and self._skip_below > 0
        self._places = places
        self._is_linked = True
        """Whether the headers lead from the segment's beginning to here without a break."""
        self._window_bytes = min(_FIRST_BYTES, WINDOW_BYTES) if self._hops else WINDOW_BYTES
        self._file: DiskFile | None = None
        self._is_missing = False
        """Whether the file was not there when it was last to be opened."""
        self._name = ""
        self._position = 0
        self._base: int | None = None
        self._bases: list[int] = []
        self._expected: int | None = None
        self._epoch = 0
        self._tail: Damage | None = None
        self._reported_tail: Damage | None = None
        self._choose_first()

    def _choose_first(self) -> None:
        if not self._disk.exists(self._path):
            raise FileMissingError(self._path)
        if not self._is_directory:
            name = name_of(self._path)
            if not name.endswith(
                (".log", ".checkpoint", ".checkpoint.part", ".log.deleted", ".checkpoint.deleted")
            ):
                raise NotALogError(self._path, "is neither a segment nor a checkpoint")
            self._base = parse_segment_name(name)
            # A checkpoint counts its own offsets from 0; its name is the end offset of its contents.
            self._expected = 0 if "checkpoint" in name else self._base
            self._name = self._path
            return
        bases = list_segments(self._disk, self._path)
        if not bases:
            raise NotALogError(self._path, "holds no .log segment")
        self._bases = bases
        first = max((base for base in bases if base <= self._skip_below), default=bases[0])
        self._enter(first, first)

    def _enter(self, base: int, expected: int) -> None:
        self.close()
        self._base = base
        self._name = join(self._path, segment_name(base))
        self._position = 0
        self._expected = expected
        self._is_linked = True

    def close(self) -> None:
        """Closes the open file; the next read reopens it at the same position."""
        if self._file is not None:
            self._file.close()
            self._file = None

    @property
    def next_offset(self) -> int | None:
        """Offset that the next batch must have; None before the first batch of a file whose start is
        unknown."""
        return self._expected

    def __iter__(self) -> Iterator[RecordBatch | Damage]:
        """Everything there is now. A tolerant reader ends with a torn tail, as a Damage."""
        while items := self.poll():
            yield from items
        if self._tolerant and self._tail is not None and self._tail != self._reported_tail:
            self._reported_tail = self._tail
            yield self._tail

    def batches(self) -> Iterator[RecordBatch]:
        """The same without damage, which a tolerant reader leaves out and a strict one raises."""
        return (item for item in self if isinstance(item, RecordBatch))

    def tail_problem(self) -> Damage | None:
        """What is after the last whole batch, as far as it was read; None if there is nothing."""
        return self._tail

    def poll(self) -> list[RecordBatch | Damage]:
        """The next batches, about one window at most; empty if there is nothing new yet. Raises
        LogDeletedError if there will be nothing more."""
        while True:
            following = self._following_segment()
            items = self._read_window()
            if items:
                return items
            if following is None and self._is_missing:  # a newer one may be there by now
                following = self._following_segment()
                if following is None:
                    raise LogDeletedError(self._name)
            if following is None:
                return []
            # The next segment existed before this one was read to its end, so this one will not grow.
            items = self._leave(following)
            if items:
                return items

    def _following_segment(self) -> int | None:
        current = self._base
        if not self._is_directory or current is None:
            return None
        number = bisect_right(self._bases, current)
        if number == len(self._bases):  # listed only for the last known one: listing takes a time per segment
            try:
                self._bases = list_segments(self._disk, self._path)
            except FileMissingError:
                raise LogDeletedError(self._path) from None
            number = bisect_right(self._bases, current)
        return self._bases[number] if number < len(self._bases) else None

    def _leave(self, following: int) -> list[RecordBatch | Damage]:
        problem: Damage | None = self._tail
        if problem is None and self._expected is not None and following != self._expected:
            problem = self._damage(
                self._position, f"expected a segment at offset {self._expected}, found {following}"
            )
        if problem is not None and not self._tolerant:
            raise _as_error(problem)
        self._tail = None
        self._enter(following, following)
        return [problem] if problem is not None else []

    def _open(self) -> DiskFile:
        if self._file is None:
            self._file = self._disk.open_read(self._name)
        return self._file

    def _read_window(self) -> list[RecordBatch | Damage]:
        try:
            file = self._open()
        except FileMissingError:
            self._is_missing = True
            return []  # trimmed meanwhile; the gap shows in the next segment
        self._is_missing = False
        size = file.size()
        if size < self._position:
            raise LogTruncatedError(self._name, self._position, self._expected or 0)
        self._tail = None
        if self._hops:
            self._hops = False
            self._hop(file, size)
        items: list[RecordBatch | Damage] = []
        while not items and self._position < size:
            buf = file.read_at(self._position, min(self._window_bytes, size - self._position))
            self._window_bytes = min(2 * self._window_bytes, WINDOW_BYTES)
            used = self._take_fast(buf, items) or self._take_one(file, buf, size, items)
            if not used:
                break
            self._position += used
        return items

    def _hop(self, file: DiskFile, size: int) -> None:
        """Hops over headers to the batch that holds the start offset, as far as they lead there.

        Does not check what is before it: a tool that starts in the middle of a large segment reads only what
        it shows.
        """
        begins = file.place_before(self._skip_below) if isinstance(file, PlacedFile) else None
        if begins is None and self._places is not None:
            begins = self._places.before(self._name, self._skip_below)
            if begins is not None and not _begins_at(file, begins):
                begins = None
        if begins is not None:
            self._position, self._expected, self._epoch = begins
        while self._position < size:
            hops = hop_headers(file.read_at(self._position, min(WINDOW_BYTES, size - self._position)))
            start = self._position
            for (_, base, following, epoch), (after, *_) in pairwise(hops):
                if base != self._expected or following <= base or epoch < self._epoch:
                    return
                if following > self._skip_below:
                    return
                self._position, self._expected, self._epoch = start + after, following, epoch
            if self._position == start:
                return  # one batch fills the window, or nothing follows

    def _take_fast(self, buf: bytes, items: list[RecordBatch | Damage]) -> int:
        """Takes fully valid batches; returns their size in bytes."""
        used = 0
        try:
            for batch in iter_batches(
                buf, self._position, self._name, expected_offset=self._expected, min_epoch=self._epoch
            ):
                used = batch.position - self._position + len(batch.data)
                self._give(batch, items)
        except CorruptLogError:
            pass  # _take_one looks more closely: it may only be cut off by the window
        return used

    def _give(self, batch: RecordBatch, items: list[RecordBatch | Damage]) -> None:
        self._expected = batch.header.next_offset
        self._epoch = batch.header.leader_epoch
        if batch.header.next_offset > self._skip_below:
            self._skip_below = 0  # found: later batches with lower offsets are no longer left out
            items.append(batch)

    def _take_one(self, file: DiskFile, buf: bytes, size: int, items: list[RecordBatch | Damage]) -> int:
        """Takes one batch that is longer than the window or not quite valid; returns the bytes to advance,
        0 to wait here."""
        left = size - self._position
        whole = self._whole_batch(file, buf, left)
        problem = batch_problem(whole, 0, check_count=False)
        if problem is not None:
            return self._skip_damage(file, left, problem, items)
        header = parse_header(whole)
        damages = [
            self._damage(self._position, text)
            for text in header_problems(header, self._expected, self._epoch)
        ]
        self._is_linked = self._is_linked and not damages
        if damages and not self._tolerant:
            raise _as_error(damages[0])
        if max(header.next_offset, (self._expected or 0) + 1) > self._skip_below:
            items += damages
        self._give(RecordBatch(header, whole, self._position, self._name), items)
        return len(whole)

    def _whole_batch(self, file: DiskFile, buf: bytes, left: int) -> bytes:
        if len(buf) < HEADER_BYTES:
            return buf
        length = int.from_bytes(buf[8:12], "big", signed=True) + LENGTH_OVERHEAD_BYTES
        if buf[16] != MAGIC or not HEADER_BYTES <= length <= MAX_READABLE_BATCH_BYTES:
            return buf
        length = min(length, left)  # of a torn batch: the rest of the file, not the window
        return buf[:length] if length <= len(buf) else file.read_at(self._position, length)

    def _skip_damage(self, file: DiskFile, left: int, problem: str, items: list[RecordBatch | Damage]) -> int:
        damage = self._damage(self._position, problem)
        self._is_linked = False
        next_batch = find_valid_batch(file, self._position + 1, self._expected or 0)
        if next_batch is None and not self._is_below_recovery_point():
            self._tail = damage
            return 0
        if not self._tolerant:
            raise _as_error(damage)
        items.append(damage)
        # The gap in the offsets is part of this damage and is not reported a second time.
        self._expected = next_batch[1].base_offset if next_batch else None
        return next_batch[0] - self._position if next_batch else left

    def _is_below_recovery_point(self) -> bool:
        """True if the writer has declared these bytes durable."""
        if not self._is_directory or self._base is None:
            return False
        point = load_recovery_point(self._disk, self._path)
        if point is None or point.resetting:
            return False
        return (self._base, self._position) < (point.segment, point.position)

    def _damage(self, position: int, reason: str) -> Damage:
        return Damage(file=self._name, position=position, offset=self._expected or 0, reason=reason)


def _begins_at(file: DiskFile, batch: tuple[int, int, int]) -> bool:
    """Whether a batch with the offset of a known place still begins there."""
    position, offset, epoch = batch
    hops = hop_headers(file.read_at(position, HEADER_BYTES))
    return bool(hops) and hops[0][1] == offset and hops[0][3] >= epoch


def _as_error(damage: Damage) -> CorruptLogError:
    return CorruptLogError(damage.file, damage.position, damage.offset, damage.reason, _ADVICE)
