"""fdatasync by the kernel's own workers (Linux AIO, IOCB_CMD_FDSYNC of io_submit(2)), without a waiting
thread.

The system calls, which the C library does not wrap, and the check whether they work here: a container may
forbid them, a file system may lack them. The result is that of fdatasync(2), errors included. A thread would
cost each sync two thread switches, and on return would wait for an interpreter that the loop is using.
"""

from __future__ import annotations

import ctypes
import errno
import os
from typing import Any, Final, Protocol

from metaquorum import platforms
from metaquorum.storage.disk.interface import DiskFile
from metaquorum.storage.errors import DiskError

_SYSTEM_CALLS: Final = {
    "x86_64": {"io_setup": 206, "io_destroy": 207, "io_getevents": 208, "io_submit": 209},
    "aarch64": {"io_setup": 0, "io_destroy": 1, "io_submit": 2, "io_getevents": 4},
}
_FDSYNC = 3
"""IOCB_CMD_FDSYNC of linux/aio_abi.h."""
_NOTIFY_EVENTFD = 1
"""IOCB_FLAG_RESFD: the eventfd in the request is written to when the request ends."""
_WORD_BYTES = 8
_NONE, _ONE = ctypes.c_long(0), ctypes.c_long(1)


class _Request(ctypes.Structure):
    """struct iocb of linux/aio_abi.h, little-endian."""

    _fields_ = (
        ("data", ctypes.c_uint64),
        ("key", ctypes.c_uint32),
        ("rw_flags", ctypes.c_int32),
        ("opcode", ctypes.c_uint16),
        ("priority", ctypes.c_int16),
        ("descriptor", ctypes.c_uint32),
        ("buffer", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64),
        ("offset", ctypes.c_int64),
        ("reserved", ctypes.c_uint64),
        ("flags", ctypes.c_uint32),
        ("eventfd", ctypes.c_uint32),
    )


class _Event(ctypes.Structure):
    """struct io_event of linux/aio_abi.h."""

    _fields_ = (
        ("data", ctypes.c_uint64),
        ("request", ctypes.c_uint64),
        ("result", ctypes.c_int64),
        ("result2", ctypes.c_int64),
    )


class _Synced(Protocol):
    """What a file provides to be synced here; PosixFile does."""

    def to_sync(self) -> int: ...

    def synced_elsewhere(self, code: int) -> None: ...


class _Aio:
    """The system calls. Raises OSError if the system lacks them."""

    def __init__(self) -> None:
        kernel = platforms.linux_kernel()
        numbers = None if kernel is None else _SYSTEM_CALLS.get(kernel[0])
        if numbers is None or ctypes.sizeof(ctypes.c_void_p) != _WORD_BYTES:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        self._numbers = numbers
        # A call that returns at once keeps the interpreter's lock: releasing it costs more than the call.
        self._quick: Any = ctypes.PyDLL(None, use_errno=True).syscall
        self._waiting: Any = ctypes.CDLL(None, use_errno=True).syscall

    def call(self, name: str, *arguments: Any, waits: bool = False) -> int:
        """Returns the result. Raises OSError."""
        while True:
            call = self._waiting if waits else self._quick
            result: int = call(ctypes.c_long(self._numbers[name]), *arguments)
            if result >= 0:
                return result
            code = ctypes.get_errno()
            if code != errno.EINTR:
                raise OSError(code, os.strerror(code))


class KernelSync:
    """A `BackgroundSync`. Create one with `open`."""

    def __init__(self, aio: _Aio) -> None:
        self._aio = aio
        self._context = ctypes.c_ulong(0)
        aio.call("io_setup", 1, ctypes.byref(self._context))
        self._eventfd = platforms.new_eventfd()
        self._request = _Request(opcode=_FDSYNC, eventfd=self._eventfd)
        self._requests = (ctypes.c_void_p * 1)(ctypes.addressof(self._request))
        self._events = (_Event * 1)()
        self._file: _Synced | None = None
        self._failure: DiskError | None = None

    @staticmethod
    def open(directory: str) -> KernelSync | None:
        """None if the system or the file system of `directory` (synced as a test) does not support this."""
        try:
            made = KernelSync(_Aio())
        except (OSError, AttributeError):
            return None
        try:
            descriptor = platforms.open_directory(directory)
            try:
                works = made._submit(descriptor) and made._take(wait=True) and made._code == 0
            finally:
                os.close(descriptor)
        except OSError:
            works = False
        if not works:
            made.close()
            return None
        made._request.flags = _NOTIFY_EVENTFD  # not earlier: the trial's event could arrive late
        return made

    def fileno(self) -> int:
        """An eventfd."""
        return self._eventfd

    def begin(self, file: DiskFile) -> bool:
        """Queues the sync, which the kernel begins at once. False if it has no room for it now."""
        synced: _Synced = file  # type: ignore[assignment]
        if not self._submit(synced.to_sync()):
            return False
        self._file, self._failure = synced, None
        return True

    def ended(self) -> bool:
        """Whether `wait` returns at once. Clears the descriptor's event."""
        platforms.clear_eventfd(self._eventfd)
        if self._file is not None and self._take(wait=False):
            self._settle()
        return self._file is None

    def wait(self) -> None:
        """Returns when the sync has ended."""
        if self._file is not None:
            self._take(wait=True)
            self._settle()
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Releases the kernel's queue."""
        if self._eventfd >= 0:
            descriptor, self._eventfd = self._eventfd, -1
            self._aio.call("io_destroy", self._context, waits=True)
            os.close(descriptor)

    def _submit(self, descriptor: int) -> bool:
        self._request.descriptor = descriptor
        try:
            return self._aio.call("io_submit", self._context, _ONE, self._requests) == 1
        except OSError as error:
            if error.errno == errno.EAGAIN:
                return False
            raise

    def _take(self, *, wait: bool) -> bool:
        """Whether the result of the one request is here."""
        least = _ONE if wait else _NONE
        return self._aio.call("io_getevents", self._context, least, _ONE, self._events, None, waits=wait) == 1

    @property
    def _code(self) -> int:
        """The errno that the request ended with; 0 for success."""
        result: int = self._events[0].result
        return -result if result < 0 else 0

    def _settle(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            try:
                file.synced_elsewhere(self._code)
            except DiskError as error:
                self._failure = error
