"""The state file of `log watch`: what was reported, durable before the next report begins."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from metaquorum import platforms
from metaquorum.cli.errors import Failure, os_error_text
from metaquorum.cli.log.watch.incidents import ReportedSoFar
from metaquorum.storage.disk.interface import read_file, write_atomically
from metaquorum.storage.disk.posix import PosixDisk


def default_path(cluster_id: str) -> Path:
    """Where the note of a cluster is kept by default."""
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(home) / "metaquorum" / f"watch-{cluster_id}.json"


class StateFile:
    """The file of one watch, which has it to itself until it is closed. Raises Failure, in one line."""

    def __init__(self, path: Path) -> None:
        self._disk = PosixDisk()
        self._path = platforms.slashed(str(path.absolute()))
        try:
            path.absolute().parent.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(f"{self._path}.lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise Failure(os_error_text(error)) from error
        if not platforms.lock_file(self._lock):
            os.close(self._lock)
            raise Failure(f"another log watch uses {path}; end it, or give another --state")

    def load(self, cluster_id: str) -> ReportedSoFar | None:
        """The note; None if there is none yet. Raises Failure if it is damaged or another cluster's."""
        if not self._disk.exists(self._path):
            return None
        try:
            found = msgspec.json.decode(read_file(self._disk, self._path), type=ReportedSoFar)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Failure(
                f"{self._path} is not the state of a log watch ({error}); give another --state, or remove it"
            ) from error
        if found.cluster_id != cluster_id:
            raise Failure(
                f"{self._path} is about cluster {found.cluster_id}, but {cluster_id} answers; give another"
                " --state"
            )
        return found

    def store(self, reported: ReportedSoFar) -> None:
        """Replaces the note; it is durable on return. Raises StorageError."""
        write_atomically(self._disk, self._path, msgspec.json.encode(reported) + b"\n")

    @property
    def path(self) -> str:
        return self._path

    def close(self) -> None:
        os.close(self._lock)
