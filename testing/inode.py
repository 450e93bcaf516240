"""A file's contents and names on a faulty disk: what is there now, and what a power loss leaves.

Owns plain functions over a map from names of files to inodes and a set of directories. Knows no randomness:
`faulty_disk` chooses what survives.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Inode:
    """A file's contents.

    `data` is the current content, `durable` that of the last sync, and `intact` how many of the synced bytes
    no truncation has touched since. `dirty`: changed since the last sync. `poisoned`: a sync failed, so later
    ones are refused.
    """

    data: bytearray = field(default_factory=bytearray)
    durable: bytes = b""
    intact: int = 0
    dirty: bool = False
    poisoned: bool = False

    def settle(self) -> None:
        """Records a successful sync: the current content is durable."""
        self.durable = bytes(self.data)
        self.intact = len(self.data)
        self.dirty = False


# (name removed or None, name set or None, inode): a rename is one step with both.
NameStep = tuple[str | None, str | None, "Inode | None"]


def normal_path(path: str) -> str:
    return path.rstrip("/") or "/"


def is_below(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory if directory == "/" else directory + "/")


def apply_step(names: dict[str, Inode], gone: str | None, came: str | None, inode: Inode | None) -> None:
    if gone:
        names.pop(gone, None)
    if came and inode is not None:
        names[came] = inode


def _depth_first(path: str) -> tuple[int, str]:
    return len(path), path


def moved_path(path: str | None, source: str, target: str) -> str:
    """The path with its leading `source` replaced by `target`; unchanged if it is not below `source`. None
    becomes ""."""
    if path is None or not is_below(path, source):
        return path or ""
    return target + path[len(source) :]


def move_below(names: dict[str, Inode], directories: set[str], source: str, target: str | None) -> None:
    """Moves a directory with its contents, or removes it (`target` None). Does nothing if `source` does not
    exist or `target` does, as when an earlier step did not survive."""
    if source not in directories or target in directories:
        return
    for one in [one for one in directories if is_below(one, source)]:
        directories.discard(one)
        if target is not None:
            directories.add(moved_path(one, source, target))
    for path in [path for path in names if is_below(path, source)]:
        inode = names.pop(path)
        if target is not None:
            names[moved_path(path, source, target)] = inode
