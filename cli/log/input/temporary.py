"""A directory for the files of one command, removed however the command ends. What a killed command left, the
next one removes.

A process locks a file in its directory. The system frees the lock when the process ends, however it ends.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from metaquorum import platforms
from metaquorum.cli.interrupts import terminated_in_order

_LOCK = ".lock"
_FILES = "files"


@contextmanager
def temporary_directory(purpose: str) -> Iterator[str]:
    """An empty directory that only this user can read. `purpose`: a word in its name."""
    prefix = f"metaquorum-{purpose}-"
    with terminated_in_order(), ExitStack() as ending:
        lock = None
        while lock is None:
            home = tempfile.mkdtemp(prefix=prefix)
            ending.callback(shutil.rmtree, home, ignore_errors=True)
            lock = _locked(home)
        ending.callback(os.close, lock)
        _remove_left(prefix, os.stat(home).st_uid)
        files = os.path.join(home, _FILES)
        os.mkdir(files, 0o700)
        yield files


def _locked(home: str) -> int | None:
    """The locked file of a new directory; None if another process took it for one that was left."""
    path = os.path.join(home, _LOCK)
    lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if platforms.lock_file(lock) and os.path.exists(path):
            return lock
    except OSError:  # without locks no process removes what another one made
        return lock
    os.close(lock)
    return None


def _remove_left(prefix: str, user: int) -> None:
    """Removes this user's directories that no process has locked."""
    for entry in os.scandir(tempfile.gettempdir()):
        with suppress(OSError):
            if not entry.name.startswith(prefix) or not entry.is_dir(follow_symlinks=False):
                continue
            if entry.stat(follow_symlinks=False).st_uid != user:
                continue
            path = os.path.join(entry.path, _LOCK)
            lock = os.open(path, os.O_RDWR)
            try:
                if not platforms.lock_file(lock):
                    continue
                with suppress(PermissionError):  # Windows keeps the names of open files
                    os.unlink(path)
            finally:
                os.close(lock)
            shutil.rmtree(entry.path, ignore_errors=True)
