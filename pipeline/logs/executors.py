"""Who reads: the driver and the executors need not be on one machine, nor in one folder.

Owns how an executor is named, and the check that it sees a path.
"""

from __future__ import annotations

import os
import socket

from metaquorum.pipeline.stores.address import is_remote
from metaquorum.pipeline.stores.disk import StoreDisk
from metaquorum.pipeline.stores.packed import holder_of
from metaquorum.storage.disk.interface import Disk
from metaquorum.storage.errors import StorageError


def where() -> str:
    """This process, for a person who looks for it."""
    return f"the executor on {socket.gethostname()} (process {os.getpid()}, started in {os.getcwd()})"


def require_path(disk: Disk, path: str) -> None:
    """Raises FileNotFoundError, PermissionError or StorageError for a path that this process cannot read,
    where a log was found."""
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
    """What is said when `who` cannot read what the driver can."""
    return (
        f"{who} cannot read {path}, which the driver can ({problem}): logs and tables must be where the "
        "driver and all executors see them, in a store or under the same path"
    )
