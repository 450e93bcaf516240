"""Who reads: the driver and the executors need not be on one machine, nor in one folder.

Owns how an executor is named, and the check that it sees a path.
"""

from __future__ import annotations

import os
import socket


def where() -> str:
    """This process, for a person who looks for it."""
    return f"the executor on {socket.gethostname()} (process {os.getpid()}, started in {os.getcwd()})"


def require_path(path: str) -> None:
    """Raises FileNotFoundError or PermissionError for a path that this process cannot read, where a log was
    found."""
    if not os.path.exists(path):
        raise FileNotFoundError(2, "there is no such file or directory", path)
    if not os.access(path, os.R_OK):
        raise PermissionError(13, "permission to read it is denied", path)


def unseen(who: str, path: str, problem: str) -> str:
    """What is said when `who` cannot read what the driver can."""
    return (
        f"{who} cannot read {path}, which the driver can ({problem}): logs and tables must be on file "
        "systems that all executors see under the same path"
    )
