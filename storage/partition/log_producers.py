"""The producers of one open log, and the files that store them: producer snapshots and `.txnindex`.

They are restored when a log is opened or truncated: from the newest readable snapshot, the aborted
transactions that ended below it, and the headers above it.

A snapshot at an offset vouches for the `.txnindex` files up to there, so these are put in place before it.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Collection, Sequence

from crc32c import crc32c

from metaquorum.storage.batches.batch import Batches, marked_headers
from metaquorum.storage.disk.interface import Disk, join, read_file, remove_if_present
from metaquorum.storage.errors import CorruptFileError, FileMissingError
from metaquorum.storage.log.segment import Segment
from metaquorum.storage.log.timed_segment import (
    TXN_INDEX_SUFFIX,
    TimedSegment,
    decode_aborted,
    encode_aborted,
    index_name,
    parse_index_name,
)
from metaquorum.storage.partition.producers import (
    BATCHES_KEPT,
    SEQUENCE_LIMIT,
    AbortedTransaction,
    AbortedTransactions,
    KnownBatch,
    KnownProducer,
    ProducerTable,
)

File = tuple[str, bytes]
MAX_OFFSET = 2**63 - 1


class LogProducers:
    """Aborted transactions whose marker is below `kept_to` are in files."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self.table = ProducerTable()
        self.snapshots = ProducerSnapshots(disk, directory)
        self.kept_to = 0
        self._indexed: set[int] = set()
        self._disk = disk
        self._directory = directory

    def note(self, batches: Batches) -> None:
        """Adds batches that were appended."""
        for header, marker in marked_headers(batches):
            if header.producer_id >= 0:
                self.table.note(header, seen_ms=header.max_timestamp_ms, marker=marker)

    # --- restoring

    def find(self, names: list[str]) -> None:
        """Finds the files among the names in the directory."""
        self.snapshots.find(names)
        found = (parse_index_name(name) for name in names if name.endswith(TXN_INDEX_SUFFIX))
        self._indexed = {base for base in found if base is not None}

    def open(
        self,
        segments: Sequence[TimedSegment],
        start: int,
        end: int,
        on_warning: Callable[[str], None],
        *,
        rebuild: bool,
    ) -> None:
        """For a log that was just opened and holds [start, end). `rebuild`: the `.txnindex` files may be
        incomplete."""
        table, snapshot_offset = self.snapshots.load(start, on_warning)
        aborted = None if rebuild else self._kept(segments, on_warning)
        if aborted is None:
            every = ProducerTable()
            self._replay(every, start, segments, end)
            self._replay(table, snapshot_offset, segments, end)
            table.aborted, self.kept_to = every.aborted, start
        else:
            aborted.cut(snapshot_offset)
            table.aborted, self.kept_to = aborted, min(snapshot_offset, end)
            self._replay(table, snapshot_offset, segments, end)
        self.table = table

    def cut(self, segments: Sequence[TimedSegment], start: int, end: int) -> None:
        """For a log that was truncated to [start, end); its files have been truncated too."""
        table, at = self.snapshots.load(start, lambda text: None)
        table.aborted, self.kept_to = self.table.aborted, min(self.kept_to, at, end)
        table.aborted.cut(at)
        self._replay(table, at, segments, end)
        self.table = table

    def begin(self, offset: int) -> None:
        """For an empty log that begins at `offset`."""
        self.table, self.kept_to = ProducerTable(), offset

    def trim(self, start: int) -> None:
        """For a log that now starts later."""
        self.table.aborted.trim(start)

    def _kept(
        self, segments: Sequence[TimedSegment], on_warning: Callable[[str], None]
    ) -> AbortedTransactions | None:
        """The contents of the files; None if one of them is invalid, which is removed."""
        aborted = AbortedTransactions()
        for segment in segments:
            if segment.base_offset not in self._indexed:
                continue
            path = self._index_path(segment.base_offset)
            limit = MAX_OFFSET if segment.sealed_end is None else segment.sealed_end
            entries = decode_aborted(read_file(self._disk, path), segment.base_offset, end_offset=limit)
            if entries is None:
                on_warning(f"{path}: is not a list of aborted transactions; it is rebuilt from the log")
                remove_if_present(self._disk, path)
                return None
            for entry in entries:
                aborted.add(AbortedTransaction(*entry))
        return aborted

    def _index_path(self, base: int) -> str:
        return join(self._directory, index_name(base, TXN_INDEX_SUFFIX))

    @staticmethod
    def _replay(table: ProducerTable, table_offset: int, segments: Sequence[TimedSegment], end: int) -> None:
        """`table` is as of `table_offset`; the headers have what followed."""
        for segment in segments:
            limit = end if segment.sealed_end is None else segment.sealed_end
            if limit <= table_offset:
                continue
            position = segment.locate(table_offset)[0] if segment.base_offset < table_offset else 0
            for header, marker in segment.producer_batches(position):
                table.note(header, seen_ms=header.max_timestamp_ms, marker=marker)

    # --- storing

    def snapshot_file(self, end: int) -> File:
        """The snapshot of a log that ends at `end`."""
        return join(self._directory, snapshot_name(end)), encode_producers(self.table)

    def aborted_files(self, segments: Sequence[Segment], end: int) -> list[File]:
        """The `.txnindex` files of segments that do not match what is known now."""
        files: list[File] = []
        aborted = self.table.aborted
        if not aborted.ending_in(self.kept_to, end):
            return files
        for at, segment in enumerate(segments):
            base = segment.base_offset
            limit = segments[at + 1].base_offset if at + 1 < len(segments) else end
            if aborted.ending_in(max(base, self.kept_to), limit):
                files.append((self._index_path(base), encode_aborted(aborted.ending_in(base, limit))))
        return files


# `<offset>.snapshot`: a log's producers as they were when the log ended at that offset.
# The files: their names, and Kafka's format (`ProducerStateManager`, version 1, with its CRC). Kafka
# writes only the last batch of a producer; the earlier batches that a retry may repeat follow its entries
# in an appendix specific to metaquorum, under the same CRC, where Kafka's reader does not look.

SUFFIX = ".snapshot"
_VERSION = 1
_NAME = re.compile(r"(\d{20})\.snapshot")
_HEAD = struct.Struct(">hI")
_COUNT = struct.Struct(">i")
# Producer id and epoch, last sequence, last offset, offset delta, timestamp, coordinator epoch, first offset
# of an ongoing transaction.
_ENTRY = struct.Struct(">qhiqiqiq")
_APPENDIX = b"MQB\x01"
_SEEN = struct.Struct(">qB")
_BATCH = struct.Struct(">iiqqq")
_ADVICE = "no action is needed: the producers are recovered from the log"


def snapshot_name(offset: int) -> str:
    """Kafka's file name: the offset in 20 digits, ".snapshot"."""
    return f"{offset:020d}{SUFFIX}"


def parse_snapshot_name(name: str) -> int | None:
    """The offset in the name; None for any other file."""
    match = _NAME.fullmatch(name)
    return int(match.group(1)) if match else None


def encode_producers(table: ProducerTable) -> bytes:
    """The contents of a file."""
    entries, appendix = [], [_APPENDIX]
    for producer in table.all():
        last = producer.batches[-1] if producer.batches else None
        entries.append(
            _ENTRY.pack(
                producer.producer_id,
                producer.epoch,
                last.last_sequence if last else -1,
                last.last_offset if last else -1,
                (last.last_offset - last.first_offset) if last else 0,
                last.timestamp_ms if last else producer.seen_ms,
                producer.coordinator_epoch,
                producer.open_from,
            )
        )
        appendix.append(_SEEN.pack(producer.seen_ms, len(producer.batches)))
        appendix += [
            _BATCH.pack(
                batch.first_sequence,
                batch.last_sequence,
                batch.first_offset,
                batch.last_offset,
                batch.timestamp_ms,
            )
            for batch in producer.batches
        ]
    body = b"".join((_COUNT.pack(len(entries)), *entries, *appendix))
    return _HEAD.pack(_VERSION, crc32c(body)) + body


def decode_producers(data: bytes, file: str) -> ProducerTable:
    """The inverse; also reads Kafka's files. Raises CorruptFileError for any other or damaged content."""
    return ProducerTable({known.producer_id: known for known in decode_entries(data, file)})


def decode_entries(data: bytes, file: str) -> list[KnownProducer]:
    """The producers in the order of the file. Raises CorruptFileError."""
    try:
        version, crc = _HEAD.unpack_from(data)
        body = memoryview(data)[_HEAD.size :]
        if version != _VERSION:
            raise CorruptFileError(file, f"has version {version}, this release reads {_VERSION}", _ADVICE)
        if crc32c(body) != crc:
            raise CorruptFileError(file, "does not match its CRC", _ADVICE)
        (count,) = _COUNT.unpack_from(body)
        entries = [_ENTRY.unpack_from(body, _COUNT.size + index * _ENTRY.size) for index in range(count)]
        rest = bytes(body[_COUNT.size + count * _ENTRY.size :])
        if not rest.startswith(_APPENDIX):
            return [_from_kafka(entry) for entry in entries]
        return _with_appendix(entries, rest)
    except (struct.error, ValueError) as error:
        raise CorruptFileError(file, f"is not a producer snapshot ({error})", _ADVICE) from None


def _from_kafka(entry: tuple[int, ...]) -> KnownProducer:
    producer_id, epoch, last_sequence, last_offset, delta, timestamp_ms, coordinator, open_from = entry
    batches: tuple[KnownBatch, ...] = ()
    if last_sequence >= 0:
        first = (last_sequence - delta) % SEQUENCE_LIMIT
        batches = (KnownBatch(first, last_sequence, last_offset - delta, last_offset, timestamp_ms),)
    return KnownProducer(producer_id, epoch, batches, timestamp_ms, coordinator, open_from)


def _with_appendix(entries: list[tuple[int, ...]], rest: bytes) -> list[KnownProducer]:
    producers = []
    entry_start = len(_APPENDIX)
    for entry in entries:
        seen_ms, kept = _SEEN.unpack_from(rest, entry_start)
        entry_start += _SEEN.size
        if kept > BATCHES_KEPT:
            raise ValueError(f"{kept} batches of one producer")
        batches = tuple(
            KnownBatch(*_BATCH.unpack_from(rest, entry_start + index * _BATCH.size)) for index in range(kept)
        )
        entry_start += kept * _BATCH.size
        producers.append(KnownProducer(entry[0], entry[1], batches, seen_ms, *entry[-2:]))
    return producers


def load_producers(disk: Disk, directory: str, offset: int) -> ProducerTable:
    """Raises CorruptFileError, FileMissingError or DiskError."""
    path = join(directory, snapshot_name(offset))
    return decode_producers(read_file(disk, path), path)


# Which producer snapshots a partition's directory has, and which of them are kept.


class ProducerSnapshots:
    """One directory's snapshots, by the offset at which the log ended when they were taken."""

    __slots__ = ("_directory", "_disk", "_offsets")

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        self._offsets: list[int] = []

    @property
    def newest(self) -> int | None:
        """The highest offset; None if there is no snapshot."""
        return self._offsets[-1] if self._offsets else None

    def find(self, names: list[str]) -> None:
        """Finds the snapshots among the names in the directory."""
        self._offsets = sorted(offset for offset in map(parse_snapshot_name, names) if offset is not None)

    def note(self, offset: int) -> None:
        """Records that there is a snapshot at `offset` now."""
        self._offsets = sorted({*self._offsets, offset})

    def load(self, start_offset: int, on_warning: Callable[[str], None]) -> tuple[ProducerTable, int]:
        """The newest readable snapshot, and its offset; if there is none, no producers, as of
        `start_offset`. Removes unreadable snapshots."""
        for offset in reversed(self._offsets):
            if offset < start_offset:
                break
            try:
                return load_producers(self._disk, self._directory, offset), offset
            except (CorruptFileError, FileMissingError) as error:
                on_warning(f"{error}; it is ignored")
                self.remove(offset)
        return ProducerTable(), start_offset

    def remove(self, offset: int) -> None:
        """Removes one if it exists."""
        if offset in self._offsets:
            self._offsets.remove(offset)
            remove_if_present(self._disk, join(self._directory, snapshot_name(offset)))

    def forget(self, bases: Collection[int]) -> None:
        """Call once the newest is durable: of the others, keeps only those at a segment's start, which
        a truncation may need."""
        for offset in [one for one in self._offsets[:-1] if one not in bases]:
            self.remove(offset)

    def drop(self, from_offset: int) -> None:
        """Removes those at and above an offset, durably: they describe records that are being truncated."""
        doomed = [offset for offset in self._offsets if offset >= from_offset]
        for offset in doomed:
            self.remove(offset)
        if doomed:
            self._disk.sync_directory(self._directory)
