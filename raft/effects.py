"""What the Raft core wants done, as values: an ordered list that the driver carries out in order.

The core changes its own view of the log when it emits an effect on the log; if such an effect fails, the
driver must stop the process. The only dependency is `after`: an effect with a token is released when the
`PersistQuorumState` of that token is durable.
"""

from __future__ import annotations

from collections import deque
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from metaquorum.raft.messages import NOTHING_COMMITTED, FetchResponse, RaftError, RaftRequest, RaftResponse
from metaquorum.raft.voters import Endpoint
from metaquorum.storage.batches.batch import Batches
from metaquorum.storage.files.known_committed import Acknowledged
from metaquorum.storage.types import LogPosition


class PersistQuorumState(msgspec.Struct, frozen=True, kw_only=True):
    """Write epoch, vote and leader in one atomic durable write, then report `QuorumStatePersisted(token)`.
    The file has the version of `kraft_version`; version 0 holds no directory id."""

    token: int
    epoch: int
    leader_id: int | None
    voted_id: int | None
    voted_directory_id: bytes | None
    kraft_version: int = 0


class AppendLog(msgspec.Struct, frozen=True, kw_only=True):
    """Append whole batches [base_offset, end_offset) to the log and request a sync (group commit)."""

    batches: Batches

    @property
    def base_offset(self) -> int:
        return self.batches.base_offset

    @property
    def end_offset(self) -> int:
        return self.batches.next_offset


class TruncateLog(msgspec.Struct, frozen=True, kw_only=True):
    """Drop everything at and above `end_offset`, durably, before the next effect."""

    end_offset: int


class ResetLog(msgspec.Struct, frozen=True, kw_only=True):
    """Empty the log and start it at `position` (the snapshot being installed), durably."""

    position: LogPosition


class SendRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Send to node `to`; a later `on_response` or `on_request_failed` names `correlation_id`. `endpoints`
    are where it listens; empty if it is configured (a voter at kraft.version 0, or below 0 a bootstrap
    server)."""

    to: int
    correlation_id: int
    request: RaftRequest
    timeout_ms: int
    after: int | None = None
    endpoints: tuple[Endpoint, ...] = ()


class Respond(msgspec.Struct, frozen=True, kw_only=True):
    """Respond to the request that arrived under `key`."""

    key: int
    response: RaftResponse
    after: int | None = None


class RespondWithRecords(msgspec.Struct, frozen=True, kw_only=True):
    """Respond to a fetch: fill `response.records` with batches in [read_from, read_to), at most `max_bytes`.

    At least one whole batch is returned even if it is larger than `max_bytes`.
    """

    key: int
    response: RaftResponse
    read_from: int
    read_to: int
    max_bytes: int
    after: int | None = None


class RespondWithSnapshotChunk(msgspec.Struct, frozen=True, kw_only=True):
    """Respond to a FetchSnapshot: fill size and data from the snapshot file, at most `max_bytes`."""

    key: int
    response: RaftResponse
    snapshot: LogPosition
    position: int
    max_bytes: int
    after: int | None = None


class WriteSnapshotChunk(msgspec.Struct, frozen=True, kw_only=True):
    """Write a chunk of a snapshot that is being fetched into its temporary file."""

    snapshot: LogPosition
    position: int
    data: bytes


class FinishSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The temporary file is complete: sync it, check it, then call `on_snapshot_loaded` (or
    `on_snapshot_rejected`: the file is deleted and fetched again)."""

    snapshot: LogPosition
    size_bytes: int


class HighWatermarkChanged(msgspec.Struct, frozen=True, kw_only=True):
    """Everything below `high_watermark` is committed."""

    high_watermark: int


class NoteCommitted(msgspec.Struct, frozen=True, kw_only=True):
    """Everything below `position` is committed, and synced here: write that to the file `known-committed`
    without waiting for the disk; with `durably`, also replace the file in the background, including what
    the directories of voters have `acknowledged`."""

    position: LogPosition
    durably: bool
    acknowledged: tuple[Acknowledged, ...] = ()


class RoleChanged(msgspec.Struct, frozen=True, kw_only=True):
    """This node's role, or the leader it knows, changed. `epoch_start` is set for a leader: the offset of
    its LeaderChange record."""

    role: str
    epoch: int
    leader_id: int | None
    epoch_start: int | None = None


class ReadReady(msgspec.Struct, frozen=True, kw_only=True):
    """A linearizable read may be served from a state that has applied everything below `offset`."""

    token: int
    offset: int


class ReadFailed(msgspec.Struct, frozen=True, kw_only=True):
    """Leadership was lost before the read was confirmed: the caller must send it to the new leader."""

    token: int


class Warn(msgspec.Struct, frozen=True, kw_only=True):
    """One line for the operator. `is_loss`: committed records are lost, or will be unless someone acts."""

    message: str
    is_loss: bool = False


RaftEffect = (
    PersistQuorumState
    | AppendLog
    | TruncateLog
    | ResetLog
    | SendRequest
    | Respond
    | RespondWithRecords
    | RespondWithSnapshotChunk
    | WriteSnapshotChunk
    | FinishSnapshot
    | HighWatermarkChanged
    | NoteCommitted
    | RoleChanged
    | ReadReady
    | ReadFailed
    | Warn
)


E = TypeVar("E")


class Outbox(list[E]):
    """A list that is emptied when an input ends."""

    def offer(self, effect: E | None) -> None:
        """Appends an effect if there is one."""
        if effect is not None:
            self.append(effect)

    def take(self) -> list[E]:
        """Returns all effects, in order, and empties the outbox."""
        taken = self[:]
        self.clear()
        return taken


Held = SendRequest | Respond | RespondWithRecords | RespondWithSnapshotChunk


class EffectGate:
    """`len()` is the number of waiting effects. It is bounded by what the core emits between two writes of
    hard state: one request per voter and one response per caller."""

    def __init__(self) -> None:
        self._held: deque[Held] = deque()
        self._durable = 0

    def __len__(self) -> int:
        return len(self._held)

    def push(self, effects: list[RaftEffect]) -> list[RaftEffect]:
        """Takes new effects; returns those that may be carried out now, in order."""
        released: list[RaftEffect] = []
        for effect in effects:
            match effect:
                case SendRequest() | Respond() | RespondWithRecords() | RespondWithSnapshotChunk():
                    if effect.after is not None and effect.after > self._durable:
                        self._held.append(effect)
                        continue
                case TruncateLog(end_offset=end_offset):
                    self._void_records(end_offset)
                case ResetLog():
                    self._void_records(-1)
                case _:
                    pass
            released.append(effect)
        return released

    def persisted(self, token: int) -> list[RaftEffect]:
        """The write of `token` (and so every earlier one) is durable; returns the effects that waited for
        it."""
        self._durable = max(self._durable, token)
        ready: list[RaftEffect] = []
        waiting: deque[Held] = deque()
        for effect in self._held:
            if effect.after is None or effect.after <= self._durable:
                ready.append(effect)
            else:
                waiting.append(effect)
        self._held = waiting
        return ready

    def _void_records(self, end_offset: int) -> None:
        """Discards records that were promised to a caller while this node led and that are now being
        truncated."""
        self._held = deque(
            self._without_records(effect)
            if isinstance(effect, RespondWithRecords) and effect.read_to > end_offset
            else effect
            for effect in self._held
        )

    @staticmethod
    def _without_records(effect: RespondWithRecords) -> Respond:
        response = effect.response
        if isinstance(response, FetchResponse):
            response = replace(
                response,
                error=RaftError.NOT_LEADER_OR_FOLLOWER,
                leader_id=None,
                high_watermark=NOTHING_COMMITTED,
            )
        return Respond(key=effect.key, response=response, after=effect.after)
