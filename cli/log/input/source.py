"""The files behind a path on this machine, for the tools, on top of `metadata.inspect.log.log`.

Owns that the disk is this machine's or an archive on it, which of several nodes stands for all, and that the
end of reading large logs is awaited with a line of progress on a terminal.
Reads only; takes no lock and writes nothing.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence

import click

from metaquorum.cli.log.input.archive import is_archive, open_archive
from metaquorum.metadata.inspect.errors import InspectError
from metaquorum.metadata.inspect.log.log import Item, MetadataLog, ReadBatch, damage_line, decode_item
from metaquorum.metadata.inspect.log.log import open_log as open_on_disk
from metaquorum.metadata.inspect.log.metadata_only import refuse_other_logs
from metaquorum.metadata.inspect.nodes.nodes import find_logs, most_complete, require_one_quorum, short_names
from metaquorum.storage.archive.disk import archive_in, disk_for
from metaquorum.storage.disk.interface import Disk, join
from metaquorum.storage.errors import NotALogError
from metaquorum.storage.log.reader import LogReader

__all__ = [
    "Item",
    "MetadataLog",
    "ReadBatch",
    "ReadProgress",
    "damage_line",
    "decode_item",
    "is_packed",
    "items",
    "logs_at",
    "open_path",
    "open_paths",
    "open_reader",
]

_SHOWN_FROM_BYTES = 2 << 20
"""A `check` of this much takes a few seconds; what is ready within _INTERVAL_S draws nothing."""
_INTERVAL_S = 0.2


def open_path(path: str, *, progress: bool = True) -> MetadataLog:
    """The log that a path means; of several nodes' logs the most complete, which is said on standard error.
    With `progress`, a line on a terminal says how far a large one was read.

    Raises InspectError, NotALogError for what holds no metadata log, Failure for an archive that stays shut.
    """
    logs = logs_at(path)
    log = logs[0]
    if len(logs) > 1:
        require_one_quorum(logs, path)
        log = most_complete(logs)
        names = short_names(logs)
        chosen = names[logs.index(log)]
        click.echo(
            f"metaquorum: {path} holds the logs of {len(logs)} nodes ({', '.join(names)}); this is the log "
            f"of {chosen}, which has the newest end; give another node's directory to see its log",
            err=True,
        )
    return _with_progress(log) if progress else log


def open_paths(paths: Sequence[str]) -> list[MetadataLog]:
    """Every log that the paths mean, each once: of directories and archives with several nodes all."""
    found = {log.path: log for path in paths for log in logs_at(path)}
    return [_with_progress(log) for log in found.values()]


def logs_at(path: str) -> list[MetadataLog]:
    """The log that a path means, or those of the nodes below it. Raises as `open_path` does."""
    if is_archive(path):
        return _found(open_archive(path), path)
    disk = disk_for(path)
    if not disk.exists(path):
        raise InspectError(f"{path} does not exist; check the path")
    try:
        log = open_on_disk(disk, path)
    except NotALogError:
        if not disk.is_directory(path):
            raise
        found = find_logs(disk, path)
        archives = [one for name in disk.list_directory(path) if is_packed(one := join(path, name))]
        found = found or [log for one in archives for log in logs_at(one)]
        if not found:
            raise
        return found
    refuse_other_logs(log)
    return [log]


def is_packed(path: str) -> bool:
    """Whether a path is that of an archive, ours or any other."""
    return is_archive(path) or archive_in(path) is not None


def _found(disk: Disk, path: str) -> list[MetadataLog]:
    logs = find_logs(disk, path)
    if not logs:
        raise NotALogError(path, "holds no metadata log")
    return logs


def _with_progress(log: MetadataLog) -> MetadataLog:
    if sys.stderr.isatty():
        size_bytes = log.size_bytes()
        if size_bytes >= _SHOWN_FROM_BYTES:
            log.on_read = ReadProgress(log.path, size_bytes)
    return log


class ReadProgress:
    """Called with the bytes of each batch that was read; redraws one line at most five times per second."""

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


def items(path: str, start_offset: int | None = None) -> Iterator[Item]:
    """Everything that the log at `path` holds now, damage between what could be read."""
    return open_path(path, progress=False).items(start_offset)


def open_reader(path: str, start_offset: int | None = None) -> LogReader:
    """A tolerant reader that can follow the log; the caller closes it."""
    return LogReader(disk_for(path), path, tolerant=True, start_offset=start_offset)
