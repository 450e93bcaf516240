"""Checks that an executor sees the paths of the driver, and names executors in messages.

The check and the wording: driver and executors may be on different machines, or in different folders.
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
    """This process as an operator can find it."""
    return f"the executor on {socket.gethostname()} (process {os.getpid()}, started in {os.getcwd()})"


def require_path(disk: Disk, path: str) -> None:
    """Raises FileNotFoundError, PermissionError or StorageError if this process cannot read a
    path where a log was found."""
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
    """The message that `who` cannot read what the driver can."""
    return (
        f"{who} cannot read {path}, which the driver can ({problem}): put logs and tables where the "
        "driver and all executors can read them, in a store or under the same path"
    )
