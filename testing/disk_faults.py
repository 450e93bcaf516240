"""Faults of a disk in memory: each is a function that `MemoryDisk` calls before an operation."""

from __future__ import annotations

import threading

from metaquorum.storage.disk.interface import parent_of
from metaquorum.storage.errors import DiskError
from metaquorum.testing.inode import is_below
from metaquorum.testing.memory_disk import NO_SPACE, DiskFault

_WRITES = frozenset({"write", "truncate", "sync", "sync_directory", "mkdir", "rename", "remove", "utime"})


def full(directory: str) -> DiskFault:
    """No byte more can be written."""

    def fault(operation: str, path: str, size: int) -> None:
        if size and is_below(path, directory):
            raise DiskError(parent_of(path), f"{operation} of {path}", NO_SPACE)

    return fault


def failing(directory: str, after_bytes: int) -> DiskFault:
    """Every operation fails once so many more bytes were written."""
    lock = threading.Lock()
    left = after_bytes

    def fault(operation: str, path: str, size: int) -> None:
        nonlocal left
        if not is_below(path, directory):
            return
        with lock:
            fails = left - size < 0 or left == 0
            left = 0 if fails else left - size
        if fails:
            raise DiskError(parent_of(path), f"{operation} of {path}", "the device reports an I/O error")

    return fault


def read_only(directory: str) -> DiskFault:
    """The file system was remounted without the right to write."""

    def fault(operation: str, path: str, size: int) -> None:
        if operation in _WRITES and is_below(path, directory):
            raise DiskError(parent_of(path), f"{operation} of {path}", "the file system is read-only")

    return fault


def slow(directory: str, delay_s: float, healed: threading.Event) -> DiskFault:
    """Every operation that changes something takes so much longer, until it is healed."""

    def fault(operation: str, path: str, size: int) -> None:
        if operation in _WRITES and is_below(path, directory):
            healed.wait(delay_s)

    return fault
