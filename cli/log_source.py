"""The files behind a path on this machine, for the tools: thin doors to `metadata.inspect.log`.

Owns only that the disk is this machine's, and that the end of reading large logs is awaited with a line of
progress on a terminal. Reads only; takes no lock and writes nothing.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

from metadata.inspect.entities import EntityNamer
from metadata.inspect.log import Item, MetadataLog, ReadBatch, damage_line, decode_item
from metadata.inspect.log import open_log as open_on_disk
from metadata.inspect.metadata_only import refuse_other_logs
from storage.posix_disk import PosixDisk
from storage.reader import LogReader

__all__ = [
    "Item",
    "MetadataLog",
    "Progress",
    "ReadBatch",
    "damage_line",
    "decode_item",
    "items",
    "log_path",
    "namer_for",
    "open_path",
    "open_reader",
]

_SHOWN_FROM_BYTES = 2 << 20
"""A `check` of so much takes a few seconds; what is ready within _INTERVAL_S draws nothing."""
_INTERVAL_S = 0.2


def open_path(path: str, *, progress: bool = True) -> MetadataLog:
    """The log that a path means. With `progress`, a line on a terminal says how far a large one was read.

    Raises FileMissingError, NotALogError for what holds no metadata log.
    """
    log = open_on_disk(PosixDisk(), path)
    refuse_other_logs(log)
    if progress and sys.stderr.isatty():
        size_bytes = log.size_bytes()
        if size_bytes >= _SHOWN_FROM_BYTES:
            log.on_read = Progress(log.path, size_bytes)
    return log


class Progress:
    """Called with the bytes of each batch that was read; redraws one line at most five times a second."""

    def __init__(self, name: str, size_bytes: int) -> None:
        self._name = name
        self._size_bytes = size_bytes
        self._done_bytes = 0
        self._shown_s = time.monotonic()
        self._drawn = False

    def __call__(self, read_bytes: int) -> None:
        self._done_bytes += read_bytes
        now_s = time.monotonic()
        if now_s - self._shown_s < _INTERVAL_S:
            return
        self._shown_s = now_s
        self._drawn = True
        percent = min(100, 100 * self._done_bytes // max(1, self._size_bytes))
        sys.stderr.write(f"\r{percent:3d} % of {self._name} ({self._done_bytes >> 20} MiB)\x1b[K")
        sys.stderr.flush()

    def clear(self) -> None:
        """Takes the line away, before anything else is written."""
        if self._drawn:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._drawn = False


def log_path(path: str) -> str:
    """The log that a path means: a node's directory stands for the `__cluster_metadata-0` in it."""
    return open_path(path).path


def items(path: str, start_offset: int | None = None) -> Iterator[Item]:
    """Everything that the log at `path` holds now, damage between what could be read."""
    return open_path(path, progress=False).items(start_offset)


def open_reader(path: str, start_offset: int | None = None) -> LogReader:
    """A tolerant reader that can follow the log; the caller closes it."""
    return LogReader(PosixDisk(), path, tolerant=True, start_offset=start_offset)


def namer_for(path: str) -> EntityNamer:
    """A namer that knows the topics from before the log's first segment, as far as a snapshot tells them."""
    return open_path(path, progress=False).namer()
