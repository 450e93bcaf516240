"""A broker's log directories: which are good, how many replicas each holds, and where a new one goes.

Owns the set of configured directories and its only direction: a directory fails and stays bad until the
process ends (KIP-112). Knows no image and no partition's state; `reconcile` holds the rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from metaquorum.broker.replica.found import FoundDirectory
from metaquorum.metadata.image.damaged import damaged_in, given_up_in

FREE_SPACE_PERCENT = 90
"""The share of the free space that recreated replicas may take: the rest is for what is written meanwhile."""


@dataclass(slots=True)
class Directory:
    """A configured directory. `problem` None: good. `replicas` counts those that are or are being made there;
    `promised_bytes`: the space that recreated replicas are expected to take and do not take yet."""

    path: str
    directory_id: bytes | None
    problem: str | None
    total_bytes: int
    usable_bytes: int
    replicas: int = 0
    promised_bytes: int = 0

    def has_room(self, size_bytes: int) -> bool:
        """Whether `size_bytes` more can be promised; unknown free space counts as enough."""
        if self.usable_bytes < 0 or size_bytes <= 0:
            return True
        return (self.promised_bytes + size_bytes) * 100 <= self.usable_bytes * FREE_SPACE_PERCENT


class Directories:
    """The configured directories in their order."""

    def __init__(self, found: Sequence[FoundDirectory]) -> None:
        self.all = [
            Directory(
                each.path,
                each.directory_id,
                each.problem if each.directory_id is not None else each.problem or "it has no directory id",
                each.total_bytes,
                each.usable_bytes,
            )
            for each in found
        ]
        self._by_id = {
            directory.directory_id: directory for directory in self.all if directory.directory_id is not None
        }
        self._damaged = {damaged_in(directory_id): directory_id for directory_id in self._by_id}
        self._given_up = {given_up_in(directory_id): directory_id for directory_id in self._by_id}

    @property
    def any_bad(self) -> bool:
        """Whether some configured directory cannot be used: what is not found may be there (S3.6)."""
        return any(directory.problem is not None for directory in self.all)

    def cannot_go_on(self, metadata_directory: bytes | None) -> str | None:
        """Why the broker has to stop, in one line: no directory is good, or that of the metadata log is bad.
        Else None."""
        if metadata_directory is not None and self.is_bad(metadata_directory):
            known = self._by_id[metadata_directory]
            return (
                f"stopped: the directory of the metadata log is offline: {known.path} ({known.problem}); "
                "repair it and restart"
            )
        if all(directory.problem is not None for directory in self.all):
            lines = ", ".join(f"{directory.path} ({directory.problem})" for directory in self.bad())
            return f"stopped: no log directory is online: {lines}; repair one of log.dirs and restart"
        return None

    def good_ids(self) -> tuple[bytes, ...]:
        return tuple(sorted(directory_id for directory_id in self._by_id if self.is_good(directory_id)))

    def bad_ids(self) -> tuple[bytes, ...]:
        """Ids of the bad directories whose id is known."""
        return tuple(sorted(directory_id for directory_id in self._by_id if self.is_bad(directory_id)))

    def bad(self) -> list[Directory]:
        return [directory for directory in self.all if directory.problem is not None]

    def get(self, directory_id: bytes) -> Directory | None:
        return self._by_id.get(directory_id)

    def named(self, path: str) -> Directory | None:
        wanted = path.rstrip("/")
        return next((directory for directory in self.all if directory.path.rstrip("/") == wanted), None)

    def is_good(self, directory_id: bytes) -> bool:
        known = self._by_id.get(directory_id)
        return known is not None and known.problem is None

    def is_bad(self, directory_id: bytes) -> bool:
        """Configured, and bad. False for one that is not, or no longer, configured: it is gone (S3.17)."""
        known = self._by_id.get(directory_id)
        return known is not None and known.problem is not None

    def holding_damaged(self, place: bytes) -> bytes | None:
        """The configured directory for which `place` marks a replica as damaged; else None."""
        return self._damaged.get(place)

    def given_up(self, place: bytes) -> bytes | None:
        """The configured directory for which `place` marks a replica as given up, to start over; else
        None."""
        return self._given_up.get(place)

    def fail(self, directory_id: bytes, reason: str) -> bool:
        """It is bad from now on. Returns False if it already was, or is not configured."""
        known = self._by_id.get(directory_id)
        if known is None or known.problem is not None:
            return False
        known.problem = reason
        known.replicas = 0
        known.promised_bytes = 0
        return True

    def measured(self, directory_id: bytes, total_bytes: int, usable_bytes: int) -> None:
        """A new measurement; earlier promises still count, because they are being written."""
        known = self._by_id.get(directory_id)
        if known is not None:
            known.total_bytes, known.usable_bytes = total_bytes, usable_bytes

    def choose(self, size_bytes: int = 0) -> bytes | None:
        """The good directory with the fewest replicas, the first of them in the configuration's order, that
        has room for `size_bytes` more; None if none has."""
        fitting = [directory for directory in self._usable() if directory.has_room(size_bytes)]
        if not fitting:
            return None
        return min(fitting, key=lambda each: each.replicas).directory_id

    def _usable(self) -> Iterable[Directory]:
        return (
            directory
            for directory in self.all
            if directory.problem is None and directory.directory_id is not None
        )
