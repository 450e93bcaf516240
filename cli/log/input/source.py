"""Opens the logs at a path of this machine, for the log commands."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence

import click

from metaquorum.cli.errors import print_problem
from metaquorum.cli.log.input.archive import is_archive, open_archive
from metaquorum.metadata.errors import InspectError
from metaquorum.metadata.inspect.log.log import Item, MetadataLog, ReadBatch, damage_line, decode_item
from metaquorum.metadata.inspect.log.log import open_log as open_on_disk
from metaquorum.metadata.inspect.log.metadata_only import refuse_other_logs
from metaquorum.metadata.inspect.nodes.nodes import find_logs, most_complete, require_one_quorum, short_names
from metaquorum.platforms import slashed
from metaquorum.storage.archive import archive_in, disk_for
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

NAMES = "metaquorum.cli.log.input.source.names"
"""Key in a context's `meta`: what messages call the log at a path, by path, if not that path."""
BEFORE_OPENING = "metaquorum.cli.log.input.source.before_opening"
"""Key in a context's `meta`: a function that copies the log of a running cluster. It is called when a log is
first opened: by then, a command has refused options that do not fit."""
_SHOWN_FROM_BYTES = 2 << 20
"""`check` takes a few seconds for this size. What is done within _INTERVAL_S shows no progress."""
_INTERVAL_S = 0.2


def open_path(path: str, *, progress: bool = True) -> MetadataLog:
    """The log at a path. Of several nodes' logs the most complete one, which it reports on standard error.
    `progress`: shows on a terminal how far a large log was read.

    Raises InspectError, NotALogError if there is no metadata log, Failure for an
    archive that cannot be opened.
    """
    logs = logs_at(path)
    log = logs[0]
    if len(logs) > 1:
        require_one_quorum(logs, path)
        log = most_complete(logs)
        names = short_names(logs)
        chosen = names[logs.index(log)]
        print_problem(
            f"{path} holds the logs of {len(logs)} nodes ({', '.join(names)}); this is the log "
            f"of {chosen}, which has the newest end; give another node's directory to see its log"
        )
    return _with_progress(log) if progress else log


def open_paths(paths: Sequence[str]) -> list[MetadataLog]:
    """Every log at the paths, each once; of directories and archives with several nodes, all."""
    found = {log.path: log for path in paths for log in logs_at(path)}
    return [_with_progress(log) for log in found.values()]


def logs_at(path: str) -> list[MetadataLog]:
    """The log at a path, or those of the nodes below it. Raises as `open_path` does."""
    fetch_first()
    given = path
    path, disk = _disk_of(path)
    if is_archive(path):
        return _found(open_archive(path), path)
    if not disk.exists(path):
        raise InspectError(f"{path} does not exist; check the path")
    try:
        log = open_on_disk(disk, path)
    except NotALogError:
        if not disk.is_directory(path):
            raise
        logs = find_logs(disk, path)
        archives = [one for name in disk.list_directory(path) if is_packed(one := join(path, name))]
        logs = logs or [log for one in archives for log in logs_at(one)]
        if not logs:
            raise
        return logs
    refuse_other_logs(log)
    log.name = _names().get(given, log.path)
    return [log]


def _names() -> Mapping[str, str]:
    context = click.get_current_context(silent=True)
    return {} if context is None else context.meta.get(NAMES, {})


def fetch_first() -> None:
    """Copies the log of a running cluster, if the command reads one and has not opened it yet. Raises
    Failure."""
    context = click.get_current_context(silent=True)
    prepare = None if context is None else context.meta.pop(BEFORE_OPENING, None)
    if prepare is not None:
        prepare()


def _disk_of(path: str) -> tuple[str, Disk]:
    """A path as it is read, and the disk to read it with. Addresses of object stores are read through the
    pipeline's file systems."""
    if "://" not in path:
        path = slashed(path)
        return path, disk_for(path)
    from metaquorum.pipeline.stores.address import PathError, address, is_remote
    from metaquorum.pipeline.stores.disk import StoreDisk

    try:
        path = address(path)
    except PathError as error:
        raise InspectError(str(error)) from None
    disk = StoreDisk()
    if is_remote(path):
        disk.look_below(path)
    return path, disk


def is_packed(path: str) -> bool:
    """Whether a path is an archive, ours or another."""
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
    """Called with the bytes of each batch that was read. Redraws its line at most five times per second."""

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
        """Removes the line before other output."""
        if self._drawn:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._drawn = False


def items(path: str, start_offset: int | None = None) -> Iterator[Item]:
    """Everything that the log at `path` holds now, with damage between the readable parts."""
    return open_path(path, progress=False).items(start_offset)


def open_reader(path: str, start_offset: int | None = None) -> LogReader:
    """A tolerant reader that can follow the log. The caller closes it."""
    return LogReader(disk_for(path), path, tolerant=True, start_offset=start_offset)
