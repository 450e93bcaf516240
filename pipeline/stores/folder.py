"""A folder of objects that a run writes: whole objects by name, never renamed, linked or locked.

Relies only on what both promise: an object that was written and closed can be read by its name.
"""

from __future__ import annotations

import os
import shutil
from typing import Any

from metaquorum.pipeline.stores.address import is_remote
from metaquorum.pipeline.stores.remote import in_one_line, opened
from metaquorum.storage.disk.interface import join, parent_of
from metaquorum.storage.disk.posix import PRIVATE_FILE
from metaquorum.storage.errors import DiskError, FileMissingError

SETTLE_SECONDS = {True: 2.0, False: 0.05}
"""Seconds after which every listing shows the earlier of two objects, in a store (True) or on a disk."""


class Folder:
    """Objects below `root`, a path or an address. Parts of names are separated by "/"."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.settle_seconds = SETTLE_SECONDS[is_remote(root)]

    def place(self, name: str) -> str:
        """The path or address of an object."""
        return join(self.root, name) if name else self.root

    def system(self) -> tuple[Any, str]:
        """pyarrow's file system, and the root in it."""
        if is_remote(self.root):
            with in_one_line("open", self.root):
                return opened(self.root)
        from pyarrow import fs

        return fs.LocalFileSystem(), self.root

    def sink(self, name: str, *, private: bool = False) -> Any:
        """pyarrow's output stream for an object, which exists once the stream is closed."""
        with in_one_line("write", self.place(name)):
            system, root = self.system()
            path = join(root, name)
            if not is_remote(self.root):
                os.makedirs(parent_of(path), exist_ok=True)
                if private:
                    os.close(os.open(path, os.O_WRONLY | os.O_CREAT, PRIVATE_FILE))
            return system.open_output_stream(path)

    def put(self, name: str, data: bytes, *, private: bool = False) -> None:
        """Writes a whole object."""
        with in_one_line("write", self.place(name)), self.sink(name, private=private) as sink:
            sink.write(data)

    def get(self, name: str) -> bytes:
        """Reads a whole object. Raises FileMissingError."""
        with in_one_line("read", self.place(name)):
            system, root = self.system()
            with system.open_input_file(join(root, name)) as handle:
                return bytes(handle.read())

    def exists(self, name: str) -> bool:
        """Whether the object exists. Requests it by name, without a listing."""
        with in_one_line("look", self.place(name)):
            system, root = self.system()
            return bool(system.get_file_info(join(root, name) if name else root).type.name != "NotFound")

    def names(self, folder: str, *, deep: bool = False) -> list[tuple[str, int]]:
        """(name from the root, time of the last change in ns) of the objects in a folder; `deep`: also of
        those below it. Empty if there is no such folder."""
        from pyarrow import fs

        with in_one_line("list", self.place(folder)):
            system, root = self.system()
            top = join(root, folder) if folder else root
            found = system.get_file_info(fs.FileSelector(top, allow_not_found=True, recursive=deep))
        cut = len(root.rstrip("/")) + 1
        return [(info.path[cut:], info.mtime_ns or 0) for info in found if info.is_file]

    def children(self) -> list[str]:
        """Names of objects and folders directly below the root."""
        from pyarrow import fs

        with in_one_line("list", self.root):
            system, root = self.system()
            found = system.get_file_info(fs.FileSelector(root, allow_not_found=True))
        return sorted(info.base_name for info in found if info.base_name)

    def remove(self, name: str) -> None:
        """Removes an object. A missing object is not an error."""
        try:
            with in_one_line("remove", self.place(name)):
                system, root = self.system()
                system.delete_file(join(root, name))
        except FileMissingError:
            return
        except DiskError:
            if self.exists(name):
                raise

    def remove_folder(self, name: str) -> None:
        """Removes everything in a folder."""
        if not is_remote(self.root):
            shutil.rmtree(self.place(name), ignore_errors=True)
            return
        for found, _ in self.names(name, deep=True):
            self.remove(found)

    def sweep(self) -> None:
        """Removes the empty objects that stand for empty folders of a store: the client writes one for the
        folder of each object that it removes. That of a folder in use stays."""
        if not is_remote(self.root):
            return
        from pyarrow import fs

        with in_one_line("list", self.root):
            system, root = self.system()
            infos = system.get_file_info(fs.FileSelector(root, allow_not_found=True, recursive=True))
            if infos and not any(info.is_file for info in infos):
                system.delete_dir(root)
                return
            used = {root.rstrip("/")}
            for info in infos:
                path = info.path.rstrip("/")
                while info.is_file and (path := parent_of(path)) not in used:
                    used.add(path)
            for info in infos:
                path = info.path.rstrip("/")
                if not info.is_file and path not in used and parent_of(path) in used:
                    system.delete_dir(path)
