"""The names on a disk in memory: files and directories by path, and moves that are not durable yet.

What is in a directory, and below it, is found without a look at the rest of the disk.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from metaquorum.storage.disk.interface import parent_of
from metaquorum.testing.inode import Inode, moved_path

_ROOTS = ("/", ".")

Move = tuple[str, str | None]
"""A directory, and where it went; None: it was removed."""


class Names:
    """Files and directories. A path may be here without the directories above it, which are durable later."""

    def __init__(self) -> None:
        self.files: dict[str, Inode] = {}
        self.directories: set[str] = set(_ROOTS)
        self._inside: dict[str, dict[str, None]] = {}
        """By directory, whether it is here or not, each path in it that is here or has something below it."""

    def copy(self) -> Names:
        """The same names of the same files."""
        other = Names()
        other.files, other.directories = dict(self.files), set(self.directories)
        other._inside = {directory: dict(paths) for directory, paths in self._inside.items()}
        return other

    def put_file(self, path: str, inode: Inode) -> None:
        """Replaces a file of this name."""
        self.files[path] = inode
        self._link(path)

    def take_file(self, path: str) -> Inode | None:
        """Removes a name; returns the file that had it, or None."""
        inode = self.files.pop(path, None)
        self._unlink(path)
        return inode

    def put_directory(self, path: str) -> None:
        """Adds a directory, unless it is here."""
        if path not in self.directories:
            self.directories.add(path)
            self._link(path)

    def take_directory(self, path: str) -> None:
        """Removes the name of a directory, if it is here, but nothing that is in it."""
        self.directories.discard(path)
        self._unlink(path)

    def inside(self, directory: str) -> list[str]:
        """Files and directories in a directory."""
        return [path for path in self._inside.get(directory, ()) if self._is_here(path)]

    def below(self, path: str) -> Iterator[str]:
        """A path and all below it, without those that are not here."""
        left = [path]
        while left:
            one = left.pop()
            if self._is_here(one):
                yield one
            left.extend(self._inside.get(one, ()))

    def apply(self, gone: str | None, added: str | None, inode: Inode | None) -> None:
        """One step of a file's names (`NameStep`)."""
        if gone:
            self.take_file(gone)
        if added and inode is not None:
            self.put_file(added, inode)

    def move(self, source: str, target: str | None) -> None:
        """Moves a directory with its contents, or removes it (`target` None). Does nothing if `source` does
        not exist or `target` does, as when an earlier step did not survive."""
        if source not in self.directories or target in self.directories:
            return
        for path in tuple(self.below(source)):
            if path in self.directories:
                self.take_directory(path)
                if target is not None:
                    self.put_directory(moved_path(path, source, target))
            if path in self.files:
                inode = self.files[path]
                self.take_file(path)
                if target is not None:
                    self.put_file(moved_path(path, source, target), inode)

    def _is_here(self, path: str) -> bool:
        return path in self.files or path in self.directories

    def _link(self, path: str) -> None:
        while path not in _ROOTS:
            parent = parent_of(path)
            inside = self._inside.setdefault(parent, {})
            if path in inside:
                return
            inside[path] = None
            path = parent

    def _unlink(self, path: str) -> None:
        while path not in _ROOTS and not self._is_here(path) and path not in self._inside:
            parent = parent_of(path)
            inside = self._inside.get(parent, {})
            inside.pop(path, None)
            if inside:
                return
            self._inside.pop(parent, None)
            path = parent


class DirectoryMoves:
    """Moves and removals of directories that their parent's sync has yet to make durable, in order."""

    def __init__(self) -> None:
        self._moves: dict[int, Move] = {}
        self._by_parent: dict[str, list[int]] = {}
        self._by_target: dict[str, list[int]] = {}
        self._count = 0

    def __iter__(self) -> Iterator[Move]:
        return iter(self._moves.values())

    def __bool__(self) -> bool:
        return bool(self._moves)

    def add(self, source: str, target: str | None) -> None:
        """The newest one."""
        self._count += 1
        self._moves[self._count] = (source, target)
        self._by_parent.setdefault(parent_of(source), []).append(self._count)
        if target is not None:
            self._by_target.setdefault(target, []).append(self._count)

    def take(self, parent: str) -> list[Move]:
        """Removes and returns those of directories in `parent`."""
        taken = []
        for number in self._by_parent.pop(parent, ()):
            source, target = self._moves.pop(number)
            taken.append((source, target))
            if target is not None:
                self._by_target[target].remove(number)
                if not self._by_target[target]:
                    del self._by_target[target]
        return taken

    def durable_path(self, path: str) -> str:
        """Where a path of now is on the disk while moves of directories above it are not durable."""
        before = self._count + 1
        while self._by_target and (before := self._last_onto(path, before)):
            source, target = self._moves[before]
            path = moved_path(path, target or "", source)
        return path

    def _last_onto(self, path: str, before: int) -> int:
        """The last move, of those before this one, that put a directory where `path` or one above it is; 0:
        none."""
        last = 0
        while True:
            numbers = self._by_target.get(path)
            if numbers and (at := bisect_left(numbers, before)):
                last = max(last, numbers[at - 1])
            if path in _ROOTS or not path:
                return last
            path = parent_of(path)
