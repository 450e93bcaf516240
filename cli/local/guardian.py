"""Ends the nodes of a test cluster when the process that owns it ends, in whatever way; removes their files.

        python -m metaquorum.cli.local.guardian DIRECTORY keep|remove <PIPE

The owner alone has the other end of the pipe, which never carries anything. Nodes watch such a pipe
themselves; those that are paused cannot.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    import psutil

_START_TOLERANCE_S = 2.0


class ProcessRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `process.json`. `created_s`: the process's start in Unix time."""

    pid: int
    created_s: float


def recorded_process(record_file: Path, config: Path) -> psutil.Process | None:
    """The process in a record, if it runs, its start time matches, and its command line names this
    configuration file."""
    import psutil  # which a guardian of a cluster that was closed does not need

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


KEEP, REMOVE = "keep", "remove"
PATIENCE_S = 10.0
_POLL_S = 0.05


def main() -> None:
    """Waits for the end of the pipe."""
    directory, then = Path(sys.argv[1]), sys.argv[2]
    while os.read(0, 1):
        pass
    end_nodes(directory)
    deadline_s = time.monotonic() + PATIENCE_S
    while then == REMOVE and directory.exists() and time.monotonic() < deadline_s:
        shutil.rmtree(directory, ignore_errors=True)  # a node that is ending may write a last file
        time.sleep(_POLL_S)


def end_nodes(directory: Path) -> None:
    """Kills every process of the cluster in a directory that still runs."""
    records = [*directory.glob("*/process.json")]
    if not records:
        return
    import psutil

    for record in records:
        process = recorded_process(record, record.with_name("node.properties"))
        if process is not None:
            with contextlib.suppress(psutil.Error):
                process.kill()
                process.wait(PATIENCE_S)


if __name__ == "__main__":
    main()
