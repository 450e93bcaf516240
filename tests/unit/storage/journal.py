"""A disk that writes down every change, in order, so that a test can say what is durable before what."""

from __future__ import annotations

import random
import re

from metaquorum.storage.disk.interface import parent_of
from metaquorum.storage.errors import DiskError
from metaquorum.testing.faulty_disk import FaultyDisk

_OFFSET = re.compile(r"\b0{1,19}(\d+)\b")
_REPLACED = re.compile(r"open (\S+)\.tmp; write \1\.tmp; sync \1\.tmp; rename \1\.tmp; sync_directory \.")
_STAGED = re.compile(r"open (\S+)\.new; write \1\.new")
_PLACED = re.compile(r"rename (\S+)\.new")


class Journal(FaultyDisk):
    """A file that is replaced as a whole is one step, `put`; one that is written beside its place, `stage`,
    and then gets its name, `place`. With `fails_at`, the step of this number fails."""

    def __init__(self, directory: str) -> None:
        super().__init__(random.Random(1))
        self.steps: list[str] = []
        self.fails_at = -1
        self._directory = directory
        self.make_directory(parent_of(directory))
        self.sync_directory("/")
        self.steps.clear()

    def emptied(self) -> FaultyDisk:
        return FaultyDisk(self.rng, self.profile)

    def begin(self, operation: str, directory: str, path: str) -> None:
        super().begin(operation, directory, path)
        if operation in ("read", "list", "lock"):
            return
        if len(self.steps) == self.fails_at:
            raise DiskError(directory, f"{operation} of {path}", "the device reports an I/O error")
        name = path.removeprefix(self._directory).removeprefix("/").removesuffix(".log") or "."
        self.steps.append(f"{operation} {_OFFSET.sub(lambda found: found[1], name)}")

    def told(self) -> list[str]:
        """The steps since the last call; offsets in names without their zeros, segments without suffix."""
        text = _REPLACED.sub(r"put \1", "; ".join(self.steps))
        text = _PLACED.sub(r"place \1", _STAGED.sub(r"stage \1", text))
        self.steps = []
        return text.split("; ") if text else []
