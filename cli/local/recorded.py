"""Processes that were recorded in a file, found again later: never others that have their pid now."""

from __future__ import annotations

from pathlib import Path

import msgspec
import psutil

_START_TOLERANCE_S = 2.0


class ProcessRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `process.json`. `created_s`: the process's start in Unix time."""

    pid: int
    created_s: float


def recorded_process(record_file: Path, config: Path) -> psutil.Process | None:
    """The process in a record, if it runs, its start time matches, and its command line names this
    configuration file."""
    try:
        record = msgspec.json.decode(record_file.read_bytes(), type=ProcessRecord)
        process = psutil.Process(record.pid)
        ours = (
            process.status() != psutil.STATUS_ZOMBIE
            and abs(process.create_time() - record.created_s) < _START_TOLERANCE_S
            and str(config) in " ".join(process.cmdline())
        )
    except (FileNotFoundError, msgspec.MsgspecError, psutil.Error):
        return None
    return process if ours else None
