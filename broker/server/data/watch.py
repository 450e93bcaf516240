"""Finds out that a log directory cannot be used if no operation reports it: the probe, the clock of hangs.

Owns the probe's thread and file, and how long a call to a disk may run. Does not know what a finding means:
the caller decides.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from metaquorum.broker.server.data.watched_disk import DiskWatch, RunningCall
from metaquorum.storage.disk.interface import Disk, join
from metaquorum.storage.errors import FileMissingError, StorageError

PROBE_FILE = ".probe"
_CONTENT = b"metaquorum writes this file to see whether the directory can be used\n"


class DirectoryProbe:
    """Creates, syncs and renames a file in a directory every `interval_s`, on a thread of its own, until it
    fails once; `failed` is called on that thread."""

    def __init__(
        self, disk: Disk, directory: str, *, interval_s: float, failed: Callable[[str], None]
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._interval_s = interval_s
        self._failed = failed
        self._ended = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._run, name=f"probe {self._directory}", daemon=True).start()

    def end(self) -> None:
        """No probe starts after this; one that hangs is left behind."""
        self._ended.set()

    def _run(self) -> None:
        while not self._ended.wait(self._interval_s):
            try:
                probe(self._disk, self._directory)
            except FileMissingError:
                # The general advice, to format a directory, is wrong for one that was here a moment ago.
                self._tell(f"{self._directory} has disappeared: mount its disk, or restore it")
                return
            except StorageError as error:
                self._tell(" ".join(str(error).split("\n")))
                return

    def _tell(self, problem: str) -> None:
        if not self._ended.is_set():
            self._failed(problem)


def probe(disk: Disk, directory: str) -> None:
    """Probes once. Raises a StorageError if a file cannot be created, synced or renamed."""
    path = join(directory, PROBE_FILE)
    file = disk.open_append(f"{path}.tmp")
    try:
        if not file.size():
            file.append(_CONTENT)
        file.sync()
    finally:
        file.close()
    disk.rename(f"{path}.tmp", path)


class HangClock:
    """How long the longest call of one directory has run while this process was awake to see it.

    A process that was paused meanwhile, or a loop that was late, proves nothing about a disk: between two
    looks at most `look_max_s` counts.
    """

    def __init__(self, watch: DiskWatch, *, timeout_s: float, look_max_s: float) -> None:
        self._watch = watch
        self._timeout_s = timeout_s
        self._look_max_s = look_max_s
        self._seen: RunningCall | None = None
        self._seen_for_s = 0.0
        self._looked_s = 0.0

    def look(self, now_s: float) -> str | None:
        """One line about a call that hangs, or None."""
        call = self._watch.longest()
        if call is None or call is not self._seen:
            self._seen_for_s = 0.0
        else:
            self._seen_for_s += min(now_s - self._looked_s, self._look_max_s)
        self._seen, self._looked_s = call, now_s
        if call is None or self._seen_for_s < self._timeout_s:
            return None
        return (
            f"{call.operation} of {call.path} has not returned for {self._timeout_s * 1000:.0f} ms"
            " (log.dir.hang.timeout.ms); check the disk"
        )
