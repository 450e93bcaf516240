"""The space that recreated replicas will take, and which directory has it (S3.29).

Owns the space that was promised and is not written yet, and the usual size of a replica here. Does not
decide which replicas to recreate: `reconcile` does.
"""

from __future__ import annotations

from metaquorum.broker.replica.placement.copies import Copies
from metaquorum.broker.replica.placement.directories import Directories
from metaquorum.metadata.requests.data import PartitionKey


class Room:
    """Room in the configured directories."""

    def __init__(self, directories: Directories, copies: Copies) -> None:
        self._directories = directories
        self._copies = copies
        self._promised: dict[PartitionKey, tuple[bytes, int]] = {}
        self._usual_bytes: int | None = None

    def look_again(self) -> None:
        """The usual size has changed."""
        self._usual_bytes = None

    def usual_size(self) -> int:
        """The average size of a replica here; 0 if there are none."""
        if self._usual_bytes is None:
            copies = self._copies.all()
            self._usual_bytes = sum(copy.size_bytes for copy in copies) // max(1, len(copies))
        return self._usual_bytes

    def place_for(self, size_bytes: int, wanted: bytes | None) -> bytes | None:
        """The wanted directory, or the one with the fewest replicas; None if none has the space."""
        if wanted is None:
            return self._directories.choose(size_bytes)
        directory = self._directories.get(wanted)
        return wanted if directory is not None and directory.has_room(size_bytes) else None

    def promise(self, key: PartitionKey, place: bytes, size_bytes: int) -> None:
        """A recreated replica will take this space there."""
        directory = self._directories.get(place)
        if directory is not None and size_bytes > 0:
            directory.promised_bytes += size_bytes
            self._promised[key] = (place, size_bytes)

    def measured(self, directory_id: bytes, total_bytes: int, usable_bytes: int) -> None:
        """A directory was measured again: promised bytes that are already written are in the measurement."""
        self._directories.measured(directory_id, total_bytes, usable_bytes)
        directory = self._directories.get(directory_id)
        if directory is None:
            return
        directory.promised_bytes = 0
        for key, (place, size) in list(self._promised.items()):
            copy = self._copies.at(place, key)
            left = 0 if copy is None else size - copy.size_bytes
            if left <= 0:
                del self._promised[key]
            elif place == directory_id:
                directory.promised_bytes += left
