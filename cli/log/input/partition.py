"""`log dump` of the files of topic partitions and log directories, in the form of kafka-dump-log."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import lru_cache
from io import SEEK_CUR, SEEK_END, SEEK_SET, BufferedReader, RawIOBase
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import click

from metaquorum.cli.log.input.select import SelectedRecords
from metaquorum.cli.text.output import json_line, text_or_base64
from metaquorum.metadata.text.partition_files import FileRows, rows_for
from metaquorum.metadata.text.partition_text import (
    batch_fields,
    batch_lines,
    control_fields,
    fields_line,
    sequence_at,
    stored_json,
)
from metaquorum.storage.archive import archive_in, disk_for
from metaquorum.storage.batches.batch import BatchHeader, RawRecord, RecordBatch, batch_problem, parse_header
from metaquorum.storage.batches.format import HEADER_BYTES, LENGTH_OVERHEAD_BYTES
from metaquorum.storage.disk.interface import DiskFile
from metaquorum.storage.errors import BatchError
from metaquorum.storage.log.config import METADATA_DIRECTORY
from metaquorum.storage.log.recovery import MAX_READABLE_BATCH_BYTES
from metaquorum.storage.log.segment_index import INDEX_SUFFIX
from metaquorum.wire.errors import DecodeError
from metaquorum.wire.stored import DECODED_TOPICS, decode_stored

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_DIRECTORY = re.compile(r"(?P<topic>[\w.-]+)-\d+")
_SEGMENT = re.compile(r"\d{20}\.log")


class Shown(NamedTuple):
    """How files are shown. `topic`: the topic of all segments; None: by the names of their directories.
    `complain` takes a line about damage."""

    selection: SelectedRecords
    as_json: bool
    topic: str | None
    complain: Callable[[str], None]


def partition_files(path: str, topic: str | None) -> list[Path]:
    """The files that a path names: the segments of a partition (one, or all in its directory), or another
    file of a partition or log directory. Empty: it names something else. With a `topic`, every segment
    counts as one of a partition."""
    given = Path(path)
    if rows_for(given.name) is not None and _is_file(path):
        return [given]
    directory = given.absolute() if given.is_dir() else given.absolute().parent
    of_partition = _DIRECTORY.fullmatch(directory.name) is not None and directory.name != METADATA_DIRECTORY
    if not of_partition and topic is None:
        return []
    if given.is_dir():
        return sorted(each for each in given.iterdir() if _SEGMENT.fullmatch(each.name))
    return [given] if _SEGMENT.fullmatch(given.name) and given.is_file() else []


_archive = lru_cache(maxsize=1)(disk_for)


def _is_file(path: str) -> bool:
    archive = archive_in(path)
    if archive is None:
        return os.path.isfile(path)
    return _archive(archive).exists(path) and not _archive(archive).is_directory(path)


def _opened(path: Path) -> BinaryIO:
    """Opens a file on this machine's disk or in an archive. Raises OSError, StorageError."""
    archive = archive_in(path.as_posix())
    if archive is None:
        return path.open("rb")
    return BufferedReader(_Archived(_archive(archive).open_read(path.as_posix())))


class _Archived(RawIOBase):
    """A file in an archive as a Python stream."""

    def __init__(self, file: DiskFile) -> None:
        self._file = file
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = SEEK_SET) -> int:
        start = {SEEK_SET: 0, SEEK_CUR: self._position, SEEK_END: self._file.size()}[whence]
        self._position = start + offset
        return self._position

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer).cast("B")
        data = self._file.read_at(self._position, len(view))
        view[: len(data)] = data
        self._position += len(data)
        return len(data)


def dump_file(path: Path, how: Shown) -> None:
    """Prints a file; of a segment, the selected batches. Raises CorruptFileError."""
    if not how.as_json:
        click.echo(f"Dumping {path}")
    rows = rows_for(path.name)
    if rows is None:
        _dump_segment(path, how)
    else:
        _dump_rows(path, rows, how)


def _dump_rows(path: Path, rows: FileRows, how: Shown) -> None:
    segment = path.with_suffix(".log")
    is_index = rows.suffix == INDEX_SUFFIX
    with _opened(path) as file:
        count = 0
        for count, row in enumerate(rows.read(file, path.as_posix()), 1):
            if is_index:
                problem = _index_problem(segment, row)
                if problem is not None:
                    how.complain(f"{path}: entry {count}: {problem}")
            click.echo(json_line({"file": path.as_posix(), **row}) if how.as_json else fields_line(row))
        if is_index and not count and not how.as_json:
            click.echo(f"{path} is empty.")


def _index_problem(segment: Path, row: dict[str, Any]) -> str | None:
    """Why a reader that starts at an entry's position would miss records. None: it would
    not, or there is no segment."""
    if not _is_file(segment.as_posix()):
        return None
    with _opened(segment) as log:
        log.seek(row["position"])
        try:
            header = parse_header(log.read(HEADER_BYTES))
        except BatchError:
            return f"expected a batch at byte {row['position']} of {segment.name}, and there is none"
    if header.base_offset <= row["offset"]:
        return None
    return f"expected a batch from offset {row['offset']} or below, found {header.base_offset}"


def _dump_segment(segment: Path, how: Shown) -> None:
    named = _DIRECTORY.fullmatch(segment.absolute().parent.name)
    topic = how.topic or ("" if named is None else named["topic"])
    if not how.as_json:
        click.echo(f"Log starting offset: {int(segment.stem)}")
    position = 0
    with segment.open("rb") as file:
        while head := file.read(HEADER_BYTES):
            try:
                header = parse_header(head)
            except BatchError as error:
                how.complain(f"{segment}: byte {position}: {error}; the rest of the file is not shown")
                return
            size = header.batch_length + LENGTH_OVERHEAD_BYTES
            if not HEADER_BYTES <= size <= MAX_READABLE_BATCH_BYTES:
                how.complain(
                    f"{segment}: byte {position}: a batch has {size} bytes; the rest of the file is not shown"
                )
                return
            if not how.selection.wants_batch(header):
                file.seek(size - HEADER_BYTES, 1)
            elif not _dump_batch(segment, topic, header, head, file, position, how):
                return
            position += size


def _dump_batch(
    segment: Path, topic: str, header: BatchHeader, head: bytes, file: BinaryIO, position: int, how: Shown
) -> bool:
    """Whether the log is readable after the batch."""
    data = head + file.read(header.size_bytes - HEADER_BYTES)
    if len(data) < header.size_bytes:
        left = header.size_bytes - len(data)
        how.complain(f"{segment}: byte {position}: the last batch is torn, {left} of its bytes are missing")
        return False
    problem = batch_problem(data, 0, check_count=False)
    if problem is not None:
        how.complain(f"{segment}: byte {position}: {problem}")
    try:
        if how.as_json:
            fields = {"file": segment.as_posix(), **batch_fields(header, data, position)}
            records = [
                _record_json(topic, header, record)
                for record in RecordBatch(header, data, position).records()
            ]
            click.echo(json_line({**fields, "records": records}))
        else:
            for line in batch_lines(topic, header, data, position):
                click.echo(line)
    except BatchError as error:
        how.complain(f"{segment}: byte {position}: {error}")
    return True


def _record_json(topic: str, header: BatchHeader, record: RawRecord) -> dict[str, Any]:
    headers = [
        {"name": name.decode(errors="replace"), **text_or_base64("value", value)}
        for name, value in record.headers
    ]
    fields: dict[str, Any] = {
        "offset": record.offset,
        "timestamp": record.timestamp_ms,
        "sequence": sequence_at(header, record.offset - header.base_offset),
        "headers": headers,
    }
    if header.is_control:
        return {**fields, **control_fields(record)}
    if topic in DECODED_TOPICS and record.key is not None:
        try:
            stored = decode_stored(topic, record.key, record.value)
        except DecodeError as error:
            fields["problem"] = str(error)
            stored = None
        if stored is not None:
            key, value = stored_json(stored)
            return {**fields, "key": key, "value": value}
    return {**fields, **text_or_base64("key", record.key), **text_or_base64("value", record.value)}
