"""Several nodes' logs below one path: which there are, whose each is, which is most caught-up."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

from metaquorum.metadata.errors import InspectError
from metaquorum.metadata.inspect.log.log import MetadataLog
from metaquorum.metadata.inspect.log.metadata_only import refuse_other_logs
from metaquorum.storage.disk.interface import Disk, join, name_of, parent_of
from metaquorum.storage.errors import DiskError, FileMissingError, NotALogError
from metaquorum.storage.files.snapshots import list_snapshots
from metaquorum.storage.log.config import METADATA_DIRECTORY
from metaquorum.storage.log.segment import list_segments
from metaquorum.storage.types import LogPosition

MAX_DEPTH = 6
"""How many levels of directories are searched."""
MAX_LEVELS_ABOVE = 64
MAX_DIRECTORIES = 100_000
"""A tree with more is not a set of nodes' directories but a whole disk."""


def find_logs(disk: Disk, path: str) -> list[MetadataLog]:
    """Every metadata log at or below a directory, by path. Skips logs of partitions, unreadable
    directories, and hidden directories, which may hold older copies, if others have a log. Raises
    InspectError for a tree that is too large."""
    left = [MAX_DIRECTORIES]
    found = list(_below(disk, path, MAX_DEPTH, left, _above(disk, path))) or list(
        _below(disk, path, MAX_DEPTH, left, _above(disk, path), hidden=True)
    )
    return sorted(found, key=lambda log: log.path)


def _above(disk: Disk, path: str) -> set[Hashable]:
    """The directories that hold a path: a link to one of them leads through everything."""
    keys: set[Hashable] = set()
    for _ in range(MAX_LEVELS_ABOVE):
        path = join(path, "..")
        key = _key(disk, path)
        if key is None or key in keys:
            break
        keys.add(key)
    return keys


def _key(disk: Disk, path: str) -> Hashable | None:
    """What identifies a directory however it is reached; None in an archive."""
    try:
        return disk.directory_key(path)
    except (DiskError, FileMissingError):
        return None


def _below(
    disk: Disk, path: str, depth: int, left: list[int], entered: set[Hashable], *, hidden: bool = False
) -> Iterator[MetadataLog]:
    key = _key(disk, path)
    if key is not None and key in entered:
        return
    entered.add(key)
    left[0] -= 1
    if left[0] < 0:
        raise InspectError(
            f"{path} has more than {MAX_DIRECTORIES} sibling directories; give the nodes' own directories"
        )
    try:
        if list_segments(disk, path) or list_snapshots(disk, path):
            log = MetadataLog(disk, path)
            if _is_metadata(log):
                yield log
            return
        names = disk.list_directory(path) if depth else []
    except DiskError:
        return
    for name in names:
        inner = join(path, name)
        if (hidden or not name.startswith(".")) and disk.is_directory(inner):
            yield from _below(disk, inner, depth - 1, left, entered, hidden=hidden)


def _is_metadata(log: MetadataLog) -> bool:
    try:
        refuse_other_logs(log)
    except NotALogError:
        return False
    return True


def home_of(log: MetadataLog) -> str:
    """The path that people know a node by: without the log's own directory and a local node's `data`."""
    path = log.directory if log.is_directory else log.path
    for name in (METADATA_DIRECTORY, "data"):
        if name_of(path) == name and parent_of(path) not in (".", "/"):
            path = parent_of(path)
    return path


def short_names(logs: Sequence[MetadataLog]) -> list[str]:
    """A name for each node: its directory below the one they all share; the whole path if
    two names are equal."""
    homes = [home_of(log).rstrip("/") for log in logs]
    parts = [home.split("/") for home in homes]
    shared = 0
    shortest = min(len(one) for one in parts)
    while shared < shortest - 1 and len({one[shared] for one in parts}) == 1:
        shared += 1
    names = ["/".join(one[shared:]) for one in parts]
    return names if len(set(names)) == len(names) else [log.path for log in logs]


def require_one_quorum(logs: Sequence[MetadataLog], where: str) -> None:
    """Raises InspectError, one line that names each cluster and its nodes, if the logs are of several."""
    clusters: dict[str, list[str]] = {}
    for log, name in zip(logs, short_names(logs), strict=True):
        if log.identity is not None and log.identity.cluster_id is not None:
            clusters.setdefault(log.identity.cluster_id, []).append(name)
    if len(clusters) > 1:
        listed = ", ".join(f"{cluster} ({', '.join(names)})" for cluster, names in clusters.items())
        raise InspectError(
            f"{where} holds nodes of {len(clusters)} clusters: {listed}; give those of one cluster"
        )


def log_end(log: MetadataLog) -> LogPosition:
    """The end of the last whole batch or, if later, of the newest snapshot. Reads the last segment."""
    last = log.last_header()
    end = LogPosition(0, log.start_offset)
    if last is not None:
        end = LogPosition(last.leader_epoch, last.next_offset)
    newest = [] if log.is_checkpoint else log.snapshots()[-1:]
    return max([end, *newest])


def most_complete(logs: Sequence[MetadataLog]) -> MetadataLog:
    """The log that represents all: the one with the newest end by (epoch, offset), as an election ranks them;
    if equal, the one that begins first, then the first by path."""

    def rank(log: MetadataLog) -> tuple[LogPosition, int]:
        return log_end(log), -log.start_offset

    return max(logs, key=rank)
