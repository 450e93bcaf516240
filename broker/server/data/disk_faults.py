"""Disk faults that tests inject into a running broker, where the machine cannot break the disk for real.

The control file: the environment variable METAQUORUM_DISK_FAULTS names it, and without the variable nothing
here is ever used. The file is JSON and is checked before every call to a log directory's disk:

    [{"directory": "/path/of/a/log/directory", "fault": "eio", "operations": ["write", "sync"]}]

`fault`: `eio`, `enospc`, `erofs` or `eacces` (the call fails as in the kernel), `hang` (the call does not
return while the line is there), or `slow` (the call takes `ms` longer). Without `operations` it applies to
every call. A missing file injects nothing.
"""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Mapping, Sequence

import msgspec

from metaquorum.errors import StartError
from metaquorum.storage.errors import DiskError

VARIABLE = "METAQUORUM_DISK_FAULTS"
HANG, SLOW = "hang", "slow"
_CODES = {name.lower(): getattr(errno, name) for name in ("EIO", "ENOSPC", "EROFS", "EACCES")}
_HANG_POLL_S = 0.02


class DirectoryFault(msgspec.Struct, frozen=True):
    directory: str
    fault: str
    operations: frozenset[str]
    ms: int = 0

    def meets(self, operation: str, path: str) -> bool:
        inside = path == self.directory or path.startswith(f"{self.directory}/")
        return inside and (not self.operations or operation in self.operations)


class FileFaults:
    """The contents of the control file, read again whenever it changed."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._seen: tuple[int, int] | None = None
        self._faults: Sequence[DirectoryFault] = ()

    def check(self, operation: str, path: str) -> None:
        """Raises DiskError for a call that must fail; does not return while it must hang."""
        while (fault := self._met(operation, path)) is not None:
            if fault.fault == SLOW:
                time.sleep(fault.ms / 1000)
                return
            if fault.fault != HANG:
                reason = os.strerror(_CODES[fault.fault])
                raise DiskError(fault.directory, f"{operation} of {path}", f"{reason} ({VARIABLE})")
            time.sleep(_HANG_POLL_S)

    def _met(self, operation: str, path: str) -> DirectoryFault | None:
        try:
            status = os.stat(self._path)
        except FileNotFoundError:
            self._seen, self._faults = None, ()
            return None
        seen = (status.st_mtime_ns, status.st_ino)
        if seen != self._seen:
            self._faults = read_faults(self._path)
            self._seen = seen
        return next((fault for fault in self._faults if fault.meets(operation, path)), None)


def read_faults(path: str) -> list[DirectoryFault]:
    """The faults in a control file, which its writer replaces or removes in one step; none if there is no
    file. Raises StartError."""
    try:
        with open(path, encoding="utf-8") as file:
            faults = json.load(file)
            if not isinstance(faults, list):
                raise TypeError("it is not a list")
            return [_fault(fault) for fault in faults]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StartError(
            f"{path} ({VARIABLE}) is not a list of disk faults: {error!r}; correct it"
        ) from error


def _fault(given: Mapping[str, object]) -> DirectoryFault:
    fault, operations = str(given["fault"]), given.get("operations") or ()
    if fault not in (HANG, SLOW) and fault not in _CODES:
        raise ValueError(f"fault {fault!r} is not one of {', '.join([*_CODES, HANG, SLOW])}")
    ms = given.get("ms", 0)
    if not isinstance(ms, int):
        raise ValueError("ms is not a number")
    if not isinstance(operations, list | tuple):
        raise ValueError("operations is not a list")
    return DirectoryFault(str(given["directory"]).rstrip("/"), fault, frozenset(map(str, operations)), ms)


def configured_faults(environment: Mapping[str, str]) -> FileFaults | None:
    """The faults that the environment requests; None, as always outside tests, if it requests none."""
    path = environment.get(VARIABLE)
    return FileFaults(path) if path else None
