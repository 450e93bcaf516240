"""Files and directories that only their user can read: logs hold credentials, and so do their copies.

Owns the modes. Existing files and directories keep theirs: an operator may have chosen them. Does not go
through `Disk`: commands and the pipeline use it for files that are not part of a log.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

PRIVATE_FILE = 0o600
PRIVATE_DIRECTORY = 0o700


def make_private_directory(path: str | Path) -> None:
    """mkdir -p; only the user can access each new directory (`os.makedirs` sets its mode on the last one
    only). Raises OSError."""
    missing = []
    at = os.path.abspath(path)
    while not os.path.lexists(at):
        missing.append(at)
        at = os.path.dirname(at)
    for one in reversed(missing):
        with suppress(FileExistsError):
            os.mkdir(one, PRIVATE_DIRECTORY)
    if not os.path.isdir(path):
        raise NotADirectoryError(20, os.strerror(20), str(path))


def private_file(path: str | Path) -> Path:
    """Returns the path of a file, which is created if absent; only the user can access a new one. Raises
    OSError."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE))
    return Path(path)
