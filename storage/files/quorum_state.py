"""The `quorum-state` file: the vote and its epoch, one atomic durable write.

The two JSON versions: 0 (Kafka up to 3.8, kraft.version 0) and 1 (kraft.version 1). Source: KIP-595, KIP-853,
Kafka's `QuorumStateData.json`.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from metaquorum.storage.disk.interface import Disk, join, read_file, write_atomically
from metaquorum.storage.errors import CorruptFileError, FileMissingError
from metaquorum.storage.uuids import ZERO_UUID, uuid_from_text, uuid_to_text

FILE_NAME = "quorum-state"
HIGHEST_VERSION = 1
_NONE = -1
_ADVICE = (
    "a lost vote can elect two leaders in one epoch, so neither remove this file on a voter nor "
    "replace it with an older one: see 'Damaged or lost' in docs/operations.md"
)


class QuorumState(msgspec.Struct, frozen=True, kw_only=True):
    """The state that a voter must not forget. `None` means that no leader is known or no vote was given.

    `voters` are the ids in version 0's currentVoters, empty in version 1; `voted_directory_id` (16 bytes)
    exists in version 1 only.
    """

    leader_id: int | None = None
    epoch: int = 0
    voted_id: int | None = None
    voted_directory_id: bytes = ZERO_UUID
    voters: tuple[int, ...] = ()

    def encode(self, version: int = 0) -> bytes:
        """The JSON in Kafka's form: no spaces, fields in Kafka's order."""
        fields: dict[str, Any] = {
            "leaderId": _NONE if self.leader_id is None else self.leader_id,
            "leaderEpoch": self.epoch,
            "votedId": _NONE if self.voted_id is None else self.voted_id,
        }
        match version:
            case 0:
                voters = [{"voterId": voter} for voter in self.voters]
                fields = {"clusterId": "", **fields, "appliedOffset": 0, "currentVoters": voters}
            case 1:
                fields["votedDirectoryId"] = uuid_to_text(self.voted_directory_id)
            case _:
                raise ValueError(f"quorum-state version {version} is unknown; give 0 or 1")
        fields["data_version"] = version
        return json.dumps(fields, separators=(",", ":")).encode()

    @staticmethod
    def decode(data: bytes, file: str = FILE_NAME) -> QuorumState:
        """Reads either version. Raises CorruptFileError for bad JSON, wrong fields or an unknown later
        version."""
        try:
            fields = json.loads(data)
            version = fields["data_version"]
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptFileError(file, f"is not a quorum state ({error})", _ADVICE) from None
        if type(version) is not int or not 0 <= version <= HIGHEST_VERSION:
            raise CorruptFileError(
                file,
                f"has data_version {version}, this release reads up to {HIGHEST_VERSION}",
                "start the newer release that wrote it",
            )
        try:
            return _from_fields(fields, version)
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptFileError(file, f"has invalid fields ({error!r})", _ADVICE) from None


def _from_fields(fields: dict[str, Any], version: int) -> QuorumState:
    leader, epoch, voted = (_integer(fields[name]) for name in ("leaderId", "leaderEpoch", "votedId"))
    # Kafka may write null for "no voters known".
    listed = (fields["currentVoters"] or ()) if version == 0 else ()
    return QuorumState(
        leader_id=None if leader < 0 else leader,
        # Kafka's default in a file that was never filled is -1.
        epoch=max(epoch, 0),
        voted_id=None if voted < 0 else voted,
        voted_directory_id=uuid_from_text(fields["votedDirectoryId"]) if version >= 1 else ZERO_UUID,
        voters=tuple(_integer(voter["voterId"]) for voter in listed),
    )


def _integer(value: object) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r} is not an integer")
    return value


def load_quorum_state(disk: Disk, directory: str) -> QuorumState | None:
    """The stored state; None in a new directory. Raises CorruptFileError, DiskError."""
    path = join(directory, FILE_NAME)
    try:
        return QuorumState.decode(read_file(disk, path), path)
    except FileMissingError:
        return None


def store_quorum_state(disk: Disk, directory: str, state: QuorumState, version: int = 0) -> None:
    """Durable on return; after a crash the file holds the old state or this one. Raises DiskError."""
    write_atomically(disk, join(directory, FILE_NAME), state.encode(version))
