"""Holds effects back until the hard state that they depend on is durable.

Owns the order in which effects are released; a controller's node and a broker's use it. Pure: does not write
the hard state. An effect with `after=token` waits for `persisted(token)`; everything else is released at once
and in order, so effects on the log and PersistQuorumState never overtake each other. Held effects are
released in the order in which they arrived.
"""

from __future__ import annotations

from collections import deque

from msgspec.structs import replace

from metaquorum.raft.effects import (
    RaftEffect,
    ResetLog,
    Respond,
    RespondWithRecords,
    RespondWithSnapshotChunk,
    SendRequest,
    TruncateLog,
)
from metaquorum.raft.messages import NOTHING_COMMITTED, FetchResponse, RaftError

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
