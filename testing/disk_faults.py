"""Faults of a disk: each is a function that it calls before an operation."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Literal, Protocol, assert_never

import msgspec

from metaquorum.storage.disk.interface import parent_of
from metaquorum.storage.errors import DiskError
from metaquorum.testing.inode import is_below
from metaquorum.testing.memory_disk import NO_SPACE, DiskFault

_WRITES = frozenset({"write", "truncate", "sync", "sync_directory", "mkdir", "rename", "remove", "utime"})

_changing = threading.Lock()
"""Tests and chaos begin and heal faults in threads of their own."""

DiskKind = Literal["full", "read-only", "failing", "slow"]


class DiskFaultOrder(msgspec.Struct, frozen=True, kw_only=True):
    """A fault below a directory. `value`: how many more bytes until a disk fails; the delay in s of a slow
    one."""

    kind: DiskKind
    directory: str
    value: float = 0


class BreakableDisk(Protocol):
    """`faults` may change at any time."""

    faults: tuple[DiskFault, ...]

    def wait(self, seconds: float, is_healed: Callable[[], bool]) -> None:
        """For a fault: an operation takes so long, unless it heals."""
        ...

    def fault_healed(self) -> None:
        """A fault is no longer in `faults`."""
        ...


def begin_disk_fault(disk: BreakableDisk, wanted: DiskFaultOrder) -> Callable[[], None]:
    """The fault is in force; returns what heals it."""
    fault = _made(wanted, disk)
    with _changing:
        disk.faults = (*disk.faults, fault)

    def heal() -> None:
        with _changing:
            disk.faults = tuple(each for each in disk.faults if each is not fault)
        disk.fault_healed()

    return heal


def _made(wanted: DiskFaultOrder, disk: BreakableDisk) -> DiskFault:
    match wanted.kind:
        case "full":
            return full(wanted.directory)
        case "read-only":
            return read_only(wanted.directory)
        case "failing":
            return failing(wanted.directory, int(wanted.value))
        case "slow":
            return slow(wanted.directory, wanted.value, disk)
        case _:
            assert_never(wanted.kind)


def full(directory: str) -> DiskFault:
    """No byte more can be written."""

    def fault(operation: str, path: str, size: int) -> None:
        if size and is_below(path, directory):
            raise DiskError(parent_of(path), f"{operation} of {path}", NO_SPACE)

    return fault


def failing(directory: str, after_bytes: int) -> DiskFault:
    """Every operation fails once this many more bytes have been written."""
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


def slow(directory: str, delay_s: float, disk: BreakableDisk) -> DiskFault:
    """Every operation that changes something takes this much longer, until it is healed."""

    def fault(operation: str, path: str, size: int) -> None:
        if operation in _WRITES and is_below(path, directory):
            disk.wait(delay_s, lambda: fault not in disk.faults)

    return fault
