"""What of a log cannot be read or trusted, as rows of the table `damage`.

`DamageNotes` takes what a tolerant reader returns, batch by batch, so that any reader of a log can report its
damage.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from metaquorum.metadata.errors import RecordDecodeError, UnsupportedVersionError
from metaquorum.metadata.features import metadata_version_name, parse_metadata_version, record_version_for
from metaquorum.metadata.inspect.log.log import MetadataLog
from metaquorum.metadata.records.batches import DecodedRecord, decode_batch
from metaquorum.metadata.records.control import UnknownControlRecord
from metaquorum.metadata.records.schema import RECORD_SCHEMAS
from metaquorum.metadata.records.types import UnknownRecord
from metaquorum.pipeline.logs.places import LogPlace
from metaquorum.storage.batches.batch import RecordBatch, batch_record_spans
from metaquorum.storage.disk.interface import Disk
from metaquorum.storage.errors import BatchError, StorageError
from metaquorum.storage.log.reader import Damage

TAIL, CORRUPT, UNDECODABLE, UNKNOWN, UNREADABLE = "tail", "corrupt", "undecodable", "unknown", "unreadable"
DIALECT, MISSING, SEAM = "dialect", "missing", "seam"
_UNKNOWN = (UnknownRecord, UnknownControlRecord)
_CLASSES = {schema.body.cls for schema in RECORD_SCHEMAS}


class DamageRow(msgspec.Struct, frozen=True):
    """A row of the table, without cluster, date and node."""

    file: str
    position: int
    offset: int
    kind: str
    reason: str


class Dialect(msgspec.Struct, frozen=True):
    """The expected form of a log: records framed as in KRaft and, with a `level`, only record types and
    versions of this metadata.version."""

    level: int | None = None


def parse_dialect(text: str) -> Dialect:
    """Parses `kraft`, or a release or level such as 3.7 or 3.7-IV4. Raises ValueError."""
    return Dialect() if text.lower() == "kraft" else Dialect(parse_metadata_version(text))


class DamageNotes:
    """Collects rows. Damage counts as the torn end of the log until a batch follows."""

    def __init__(self, dialect: Dialect | None = None) -> None:
        self._dialect = dialect
        self._rows: list[DamageRow] = []
        self._pending: list[Damage] = []
        self._unknown: dict[tuple[str, int, int], list[int]] = {}
        self._where: dict[tuple[str, int, int], tuple[str, int]] = {}
        self._allowed: dict[tuple[type, int], str | None] = {}

    def damage(self, damage: Damage) -> None:
        self._pending.append(damage)

    def add(self, kind: str, file: str, position: int, offset: int, reason: str) -> None:
        self._rows.append(DamageRow(file, position, offset, kind, reason))

    def batch(self, batch: RecordBatch) -> tuple[DecodedRecord, ...] | None:
        """The records of a batch, with notes about them. None, and a row, if they cannot be decoded."""
        self._compare(CORRUPT)
        try:
            records = decode_batch(batch, tolerant=True)
        except (RecordDecodeError, BatchError) as error:
            self.add(UNDECODABLE, batch.file, batch.position, batch.header.base_offset, str(error))
            return None
        for decoded in records:
            record = decoded.record
            if isinstance(record, _UNKNOWN):
                number = record.api_key if isinstance(record, UnknownRecord) else record.control_type
                key = (record.type_name, number, decoded.version)
                if key in self._unknown:
                    self._unknown[key][1] += 1
                else:
                    self._unknown[key] = [decoded.offset, 1]
                    self._where[key] = (batch.file, batch.position)
        if self._dialect is not None:
            self._check_dialect(self._dialect, batch, records)
        return records

    def whole(self) -> None:
        """Sound batches follow: what was noted before them is not a torn end of the log."""
        self._compare(CORRUPT)

    def _check_dialect(
        self, dialect: Dialect, batch: RecordBatch, records: tuple[DecodedRecord, ...]
    ) -> None:
        header = batch.header
        if not header.is_control:
            try:
                batch_record_spans(batch)
            except BatchError as error:
                self.add(
                    DIALECT,
                    batch.file,
                    batch.position,
                    header.base_offset,
                    f"KRaft never writes this: {error}",
                )
        if dialect.level is None:
            return
        for decoded in records:
            key = (type(decoded.record), decoded.version)
            if key not in self._allowed:
                self._allowed[key] = _version_problem(*key, dialect.level)
            problem = self._allowed[key]
            if problem is not None:
                self.add(DIALECT, batch.file, batch.position, decoded.offset, problem)

    def _compare(self, kind: str) -> None:
        for damage in self._pending:
            self.add(kind, damage.file, damage.position, damage.offset, damage.reason)
        self._pending = []

    def cut_off(self) -> tuple[list[DamageRow], bytes]:
        """All notes, for a reader that continues with other batches in notes of its own."""
        self._compare(CORRUPT)
        return self.take(), self.save()

    def continue_from(self, rows: list[DamageRow], saved: bytes) -> None:
        """Takes over what `cut_off` returned, for the batches that follow."""
        self._compare(CORRUPT)
        self._rows += rows
        later = DamageNotes()
        later.load(saved)
        for key, (offset, count) in later._unknown.items():
            known = self._unknown.setdefault(key, [offset, 0])
            known[1] += count
            self._where.setdefault(key, later._where[key])

    def take(self, *, at_end: bool = False) -> list[DamageRow]:
        """Rows since the last call. `at_end`: also the log's torn end and the sums of unknown records."""
        if at_end:
            self._compare(TAIL)
            for (name, number, version), (offset, count) in self._unknown.items():
                file, position = self._where[name, number, version]
                times = "once" if count == 1 else f"{count} times from here on"
                reason = f"this release does not know record type {number} version {version}: found {times}"
                self.add(UNKNOWN, file, position, offset, reason)
            self._unknown = {}
        taken, self._rows = self._rows, []
        return taken

    def save(self) -> bytes:
        """State from which a later reader can continue the sums of unknown records."""
        known = [(*key, *self._where[key], *counted) for key, counted in self._unknown.items()]
        return msgspec.msgpack.encode(known)

    def load(self, saved: bytes) -> None:
        """Raises msgspec.DecodeError for other bytes."""
        for name, number, version, file, position, offset, count in msgspec.msgpack.decode(
            saved, type=list[tuple[str, int, int, str, int, int, int]]
        ):
            self._unknown[name, number, version] = [offset, count]
            self._where[name, number, version] = (file, position)


def _version_problem(cls: type, version: int, level: int) -> str | None:
    if cls not in _CLASSES:
        return None
    name = metadata_version_name(level)
    try:
        highest = record_version_for(cls, level)
    except UnsupportedVersionError:
        return f"metadata.version {name} has no {cls.__name__}"
    if version > highest:
        return f"metadata.version {name} writes {cls.__name__} up to version {highest}, found {version}"
    return None


def log_damage(disk: Disk, location: LogPlace, dialect: Dialect | None = None) -> Iterator[DamageRow]:
    """Every row of one log, which is read from start to end. An unreadable file is one row."""
    notes = DamageNotes(dialect)
    try:
        log = MetadataLog(disk, location.path)
        for item in log.batches():
            if isinstance(item, Damage):
                notes.damage(item)
            else:
                notes.batch(item)
            yield from notes.take()
    except (StorageError, OSError) as error:
        notes.add(UNREADABLE, location.path, 0, 0, str(error))
    yield from notes.take(at_end=True)
