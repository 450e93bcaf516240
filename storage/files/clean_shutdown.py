"""The `.kafka_cleanshutdown` file of a log directory: the last process stopped in order, and who it was.

Owns the file: left at the end of an orderly stop, taken away at the next start before anything is written. A
broker that finds it in all of its directories can prove to the controller that it lost nothing (KIP-966's
PreviousBrokerEpoch). Source: Kafka's CleanShutdownFileHandler, version 0.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence

from metaquorum.storage.disk.interface import Disk, join, read_file, remove_if_present, write_atomically
from metaquorum.storage.errors import DiskError, FileMissingError

FILE_NAME = ".kafka_cleanshutdown"


def leave_clean_shutdown(disk: Disk, directories: Sequence[str], broker_epoch: int) -> None:
    """Call when everything that was written is on disk. Durable on return; raises DiskError."""
    data = json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":")).encode()
    for directory in directories:
        write_atomically(disk, join(directory, FILE_NAME), data)


def take_clean_shutdown(disk: Disk, directories: Sequence[str]) -> int | None:
    """The broker epoch of the process that stopped in order, if all directories say the same one; None: it
    did not, or nothing proves it. The files are gone when it returns, but in a directory whose disk fails:
    what stays there proves nothing later, because the others will say something else."""
    found = [_epoch_in(disk, join(directory, FILE_NAME)) for directory in directories]
    for directory in directories:
        with contextlib.suppress(DiskError):
            if remove_if_present(disk, join(directory, FILE_NAME)):
                disk.sync_directory(directory)
    return found[0] if found and len(set(found)) == 1 else None


def _epoch_in(disk: Disk, path: str) -> int | None:
    """A file that cannot be read proves nothing."""
    try:
        fields = json.loads(read_file(disk, path))
    except (FileMissingError, DiskError, ValueError):
        return None
    epoch = fields.get("brokerEpoch") if isinstance(fields, dict) and fields.get("version") == 0 else None
    return epoch if type(epoch) is int and epoch >= 0 else None
