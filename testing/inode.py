"""A file's contents and names on a faulty disk: what is there now, and what a power loss leaves."""

from __future__ import annotations

from dataclasses import dataclass, field

NO_CLOCK_MS = 2**62
"""When files of a disk without a clock were written: none of them ever gets old."""


@dataclass(slots=True)
class Inode:
    """A file's contents.

    `data` is the current content; a sync copies nothing. `dirty`: changed since the last sync. `poisoned`: a
    sync failed, so later ones are refused. `modified_ms`: when it was last written.
    """

    data: bytearray = field(default_factory=bytearray)
    intact: int = 0
    """How many of the synced bytes no truncation has touched since."""
    cut: bytes = b""
    """The synced bytes behind those, which truncations have removed from `data`."""
    dirty: bool = False
    poisoned: bool = False
    modified_ms: int = NO_CLOCK_MS

    @classmethod
    def synced(cls, data: bytes, modified_ms: int) -> Inode:
        """A file that is durable as it is."""
        return cls(bytearray(data), len(data), modified_ms=modified_ms)

    @property
    def durable(self) -> bytes:
        """The content of the last sync."""
        return bytes(memoryview(self.data)[: self.intact]) + self.cut

    def settle(self) -> None:
        """Records a successful sync: the current content is durable."""
        self.intact, self.cut = len(self.data), b""
        self.dirty = False

    def truncate(self, size: int) -> None:
        """Cuts the content to `size` bytes, or extends it with zeros."""
        if size < self.intact:
            self.cut = bytes(memoryview(self.data)[size : self.intact]) + self.cut
            self.intact = size
        del self.data[size:]
        self.data.extend(bytes(size - len(self.data)))
        self.dirty = True

    def flip(self, position: int, bit: int) -> None:
        """Flips a bit of the current and the durable content."""
        self.data[position] ^= 1 << bit
        behind = position - self.intact
        if 0 <= behind < len(self.cut):
            damaged = bytearray(self.cut)
            damaged[behind] ^= 1 << bit
            self.cut = bytes(damaged)


# (name removed or None, name set or None, inode): a rename is one step with both.
NameStep = tuple[str | None, str | None, "Inode | None"]


def normal_path(path: str) -> str:
    return path.rstrip("/") or "/"


def is_below(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory if directory == "/" else directory + "/")


def _depth_first(path: str) -> tuple[int, str]:
    return len(path), path


def moved_path(path: str | None, source: str, target: str) -> str:
    """The path with its leading `source` replaced by `target`; unchanged if it is not below `source`. None
    becomes ""."""
    if path is None or not is_below(path, source):
        return path or ""
    return target + path[len(source) :]
