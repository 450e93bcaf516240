"""Finds the logs at the paths that a user gave: files, log directories, node directories, or trees of
them."""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase

import msgspec

from metaquorum.metadata.inspect.log.log import ClusterIdentity, MetadataLog, open_log
from metaquorum.pipeline.stores.address import is_remote
from metaquorum.pipeline.stores.disk import GZIP, StoreDisk, holder_of, is_archive
from metaquorum.storage.disk.interface import Disk, join, name_of, parent_of
from metaquorum.storage.errors import FileMissingError, NotALogError, StorageError
from metaquorum.storage.files.meta_properties import FILE_NAME as META_PROPERTIES
from metaquorum.storage.files.snapshots import BOOTSTRAP_FILE, list_snapshots
from metaquorum.storage.log.config import METADATA_DIRECTORY
from metaquorum.storage.log.segment import list_segments

ORIGINS_FILE, FACTS_FILE = "origins.json", "facts"
"""Stored beside the records that were retained of a log: the origin of its segments, and the facts
that identify the cluster."""
_PATTERN = re.compile(r"[*?\[]")
MAX_DEPTH = 12
"""The number of levels below a given directory to search for logs."""
READERS = 16
"""Threads that read `meta.properties` of a store: each waits for answers."""
SETTLED_NS = 2_000_000_000
"""A file that changed less than this long ago may change again within one tick of a store's clock."""


class LogPlace(msgspec.Struct, frozen=True, kw_only=True):
    """One log: a directory, a segment or a checkpoint. `cluster`: the cluster id of `meta.properties`;
    without one, `file:` and the log's path. `node_id`: None without one."""

    path: str
    cluster: str
    node_id: int | None
    is_retained: bool = False
    """Whether it was retained by an earlier run, beside the tables."""
    name_in_tables: str = ""
    """For a retained log: the cluster's name in the tables."""
    read: tuple[str, ...] = ()
    """For a retained log: the paths of the logs that the earlier run read."""


class NoLogsError(Exception):
    """The paths have no log. The text says which, and what to give."""


_Stamps = tuple[tuple[int, int] | None, ...]


class Identities:
    """The `meta.properties` of logs. If asked again, as by a stream at each trigger, it reads only files that
    changed. Remembers only the logs of the last call."""

    def __init__(self) -> None:
        self._read: dict[str, tuple[_Stamps, ClusterIdentity | None]] = {}

    def of(self, disk: Disk, logs: list[MetadataLog]) -> list[ClusterIdentity | None]:
        """The identity of each log; None without a readable file that names one."""
        now_ns = time.time_ns()
        stamps = [_stamps(disk, log) for log in logs]
        said = [self._read.get(log.path, (None, None)) for log in logs]
        asked = [at for at in range(len(logs)) if said[at][0] is None or said[at][0] != stamps[at]]
        identities = [identity for _, identity in said]
        for at, identity in zip(asked, _read_all([logs[at] for at in asked]), strict=True):
            identities[at] = identity
        self._read = {
            log.path: (seen, identity)
            for log, seen, identity in zip(logs, stamps, identities, strict=True)
            if all(one is None or one[1] < now_ns - SETTLED_NS for one in seen)
        }
        return identities


def _stamps(disk: Disk, log: MetadataLog) -> _Stamps:
    """The present state of the files in which `MetadataLog.identity` looks."""
    if not isinstance(disk, StoreDisk):
        return ((0, time.time_ns()),)
    return tuple(disk.stamp(join(at, META_PROPERTIES)) for at in (log.directory, parent_of(log.directory)))


def _read_all(logs: list[MetadataLog]) -> list[ClusterIdentity | None]:
    if sum(is_remote(log.path) for log in logs) < 2:
        return [_identity(log) for log in logs]
    with ThreadPoolExecutor(READERS) as pool:
        return list(pool.map(_identity, logs))


def _identity(log: MetadataLog) -> ClusterIdentity | None:
    try:
        return log.identity
    except StorageError:
        return None


def find_logs(
    disk: Disk, paths: Iterable[str], cluster: str | None = None, earlier: Identities | None = None
) -> list[LogPlace]:
    """Every log below the paths, each once, in path order. `cluster`: the cluster of all of them, whatever
    their files say. `earlier`: what was read before. Parts of a path may contain *, ? and [...]. Raises
    NoLogsError for a path that is missing or has no log."""
    logs_by_path: dict[str, MetadataLog] = {}
    for path in (one for given in paths for one in _matching(disk, given)):
        before = len(logs_by_path)
        if isinstance(disk, StoreDisk) and disk.is_directory(path) and not is_archive(path):
            disk.look_below(path)
        for log in _below(disk, _unpacked_name(disk, path.rstrip("/") or "/"), MAX_DEPTH):
            logs_by_path.setdefault(log.path, log)
        if len(logs_by_path) == before and not any(
            at == path or at.startswith(path.removesuffix(GZIP)) for at in logs_by_path
        ):
            raise NoLogsError(
                f"{path} holds no metadata log; give a segment, a checkpoint, a directory with .log files, "
                "a node's directory, a directory above them, or an archive of one (.mqa, .tar, .tar.gz, .tgz)"
            )
    logs = list(logs_by_path.values())
    identities = (earlier or Identities()).of(disk, logs)
    return [_place(log, identity, cluster) for log, identity in zip(logs, identities, strict=True)]


def _unpacked_name(disk: Disk, path: str) -> str:
    """The name of a gzip file's content."""
    return path.removesuffix(GZIP) if not disk.is_directory(path) else path


def _matching(disk: Disk, path: str) -> list[str]:
    """The path, or the paths that match if parts of it contain *, ? or [...]. Raises
    NoLogsError if there are none."""
    if disk.exists(path):
        return [path]
    if not _PATTERN.search(path):
        raise NoLogsError(f"{path}: there is no such file or directory; check the path")
    top, *parts = _parts(path)
    paths = [top]
    for part in parts:
        if _PATTERN.search(part):
            folders = (at for at in paths if disk.is_directory(at))
            paths = [
                join(at, name)
                for at in folders
                for name in disk.list_directory(at)
                if fnmatchcase(name, part)
            ]
        else:
            paths = [join(at, part) for at in paths if disk.exists(join(at, part))]
    if not paths:
        raise NoLogsError(f"{path}: nothing matches; check the pattern")
    return paths


def _parts(path: str) -> list[str]:
    """The root or bucket, and the names below it."""
    scheme, separator, rest = path.rpartition("://")
    bucket, _, inner = rest.partition("/")
    return [f"{scheme}{separator}{bucket}" or "/", *(part for part in inner.split("/") if part)]


def _below(disk: Disk, path: str, depth: int) -> Iterator[MetadataLog]:
    if not disk.is_directory(path):
        try:
            yield open_log(disk, path)
        except (FileMissingError, NotALogError) as error:
            raise NoLogsError(str(error)) from error
        return
    if list_segments(disk, path) or list_snapshots(disk, path):
        if name_of(path) == METADATA_DIRECTORY or not _is_data_log(disk, path):
            yield MetadataLog(disk, path)
        return
    if depth:
        for name in disk.list_directory(path):
            inner = join(path, name)
            if not is_archive(inner) and disk.is_directory(inner):
                yield from _below(disk, inner, depth - 1)


def _is_data_log(disk: Disk, path: str) -> bool:
    """Whether a directory of segments is a topic partition: NAME-NUMBER beside a metadata log, or in a
    broker's directory, which has `meta.properties`."""
    stem, dash, number = name_of(path).rpartition("-")
    if not (stem and dash and number.isdigit()):
        return False
    parent = path.rstrip("/").rpartition("/")[0] or "."
    names = disk.list_directory(parent)
    return "meta.properties" in names or METADATA_DIRECTORY in names or BOOTSTRAP_FILE in names


def _place(log: MetadataLog, identity: ClusterIdentity | None, cluster: str | None) -> LogPlace:
    named = identity.cluster_id if identity is not None else None
    return LogPlace(
        path=log.path,
        cluster=cluster or named or f"file:{log.path}",
        node_id=identity.node_id if identity is not None else None,
    )


# Checks that an executor sees the paths of the driver, and names executors in messages.
#
# The check and the wording: driver and executors may be on different machines, or in different folders.


def where() -> str:
    """This process as an operator can find it."""
    return f"the executor on {socket.gethostname()} (process {os.getpid()}, started in {os.getcwd()})"


def require_path(disk: Disk, path: str) -> None:
    """Raises FileNotFoundError, PermissionError or StorageError if this process cannot read a
    path where a log was found."""
    if not disk.exists(path):
        raise FileNotFoundError(2, "there is no such file or directory", path)
    if not is_remote(path) and not os.access(holder_of(path), os.R_OK):
        raise PermissionError(13, "permission to read it is denied", path)


def can_read(path: str) -> bool:
    """Whether this process can read a path."""
    try:
        require_path(StoreDisk(), path)
    except (OSError, StorageError):
        return False
    return True


def unseen(who: str, path: str, problem: str) -> str:
    """The message that `who` cannot read what the driver can."""
    return (
        f"{who} cannot read {path}, which the driver can ({problem}): put logs and tables where the "
        "driver and all executors can read them, in a store or under the same path"
    )
