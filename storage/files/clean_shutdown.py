"""The `.kafka_cleanshutdown` file of a log directory: which process stopped cleanly last.

Owns the file: written at the end of a clean shutdown, removed at the next start before anything is written. A
broker that finds it in all of its directories can prove to the controller that it lost nothing (KIP-966's
PreviousBrokerEpoch). Does not sync logs: its caller has done so before. Source: Kafka's
CleanShutdownFileHandler, version 0.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence

from metaquorum.storage.disk.interface import Disk, join, read_file, remove_if_present, write_atomically
from metaquorum.storage.errors import DiskError, FileMissingError

FILE_NAME = ".kafka_cleanshutdown"


def leave_clean_shutdown(disk: Disk, directories: Sequence[str], broker_epoch: int) -> None:
    """Call this when everything that was written is on disk. Durable on return; raises DiskError."""
    data = json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":")).encode()
    for directory in directories:
        write_atomically(disk, join(directory, FILE_NAME), data)


def take_clean_shutdown(disk: Disk, directories: Sequence[str]) -> int | None:
    """The broker epoch of the process that stopped cleanly, if all directories have the same one;
    otherwise None, for an unclean or unproven stop. The files are removed on return, except in a directory
    whose disk fails: a file left there proves nothing later, because the others will differ."""
    found = [_epoch_in(disk, join(directory, FILE_NAME)) for directory in directories]
    for directory in directories:
        with contextlib.suppress(DiskError):
            if remove_if_present(disk, join(directory, FILE_NAME)):
                disk.sync_directory(directory)
    return found[0] if found and len(set(found)) == 1 else None


def _epoch_in(disk: Disk, path: str) -> int | None:
    """The epoch in the file; an unreadable file proves nothing."""
    try:
        fields = json.loads(read_file(disk, path))
    except (FileMissingError, DiskError, ValueError):
        return None
    epoch = fields.get("brokerEpoch") if isinstance(fields, dict) and fields.get("version") == 0 else None
    return epoch if type(epoch) is int and epoch >= 0 else None
