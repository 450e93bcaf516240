"""The interface of a coordinator's state machine, and the values that it exchanges with its shard.

Groups and transactions each are one such state machine per partition of their internal topic. A state machine
knows no log: it decides on its newest state and returns what to store; the shard stores it, replays it, and
answers when it is committed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from msgspec import Struct

from metaquorum.broker.replica.events import DataEffect
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.requests.data import CoordinatorRequest
from metaquorum.wire.messages import OffsetCommitRequest, TxnOffsetCommitRequest
from metaquorum.wire.stored import StoredRecord


class Now(Struct, frozen=True):
    """`ms`: the clock of timers. `wall_ms`: the time of day, which is stored."""

    ms: int
    wall_ms: int


class BatchOrigin(Struct, frozen=True):
    """The batch of a record, and the record's offset. `producer_id` -1: it is in no transaction."""

    offset: int = -1
    producer_id: int = -1
    producer_epoch: int = -1


class Ask(Struct, frozen=True):
    """A request. `key` names the caller that waits for the answer."""

    key: object
    request: CoordinatorRequest

    @property
    def body(self) -> Any:
        return self.request.body


class Reply(Struct, frozen=True):
    """`body`: the service in front turns it into an answer; or an error for the request as a whole."""

    key: object
    body: Any | ApiError


class Decision(Struct, frozen=True, kw_only=True):
    """The result of a request, of time, or of metadata.

    `records` go into the log as one batch, or none of them does; they are replayed as soon as they are in the
    leader's log. `replies` and `effects` are sent when everything that was decided before is committed; with
    `at_once` before that, for an answer that depends on nothing stored. `origin` names the producer of a
    transactional batch. `if_refused`: what happens instead if the log refuses the records; without it every
    reply is that error. `if_unsettled` is called if `effects` are not sent because it is unknown whether the
    records will be committed.
    """

    records: tuple[StoredRecord, ...] = ()
    replies: tuple[Reply, ...] = ()
    effects: tuple[DataEffect, ...] = ()
    at_once: bool = False
    origin: BatchOrigin = BatchOrigin()
    if_refused: Callable[[ErrorCode], Decision] | None = None
    if_unsettled: Callable[[], None] | None = None


NOTHING = Decision()


class CoordinatorState(Protocol):
    """One partition's state machine. Only `replay` changes the state that records describe; the rest may
    change what no record holds: which requests wait, and until when."""

    def replay(self, record: StoredRecord, origin: BatchOrigin) -> None:
        """Applies a record: from the log while the shard loads, afterwards from its own decisions."""
        ...

    def replay_marker(self, origin: BatchOrigin, *, committed: bool) -> None:
        """The transaction of a producer in this partition ended."""
        ...

    def loaded(self, image: MetadataImage, now: Now) -> Decision:
        """The log has been replayed: the state machine becomes active."""
        ...

    def image_moved(self, image: MetadataImage, previous: MetadataImage, now: Now) -> Decision:
        """Metadata changed."""
        ...

    def only_reads(self, body: Any) -> bool:
        """Whether a request of this kind never stores anything: it is decided even while the log refuses
        appends."""
        ...

    def decide(self, asked: Ask, now: Now) -> Decision:
        """Answers a request, now or in a later decision."""
        ...

    def tick(self, now: Now) -> Decision:
        """A deadline has passed. Called again while one is due."""
        ...

    def next_deadline_ms(self) -> int | None:
        """When `tick` is due, on the clock of `Now.ms`."""
        ...


# What a client is told if its coordinator's own append failed: Kafka's translation, for each request.

_MOVED = {
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.BROKER_NOT_AVAILABLE: ErrorCode.NOT_COORDINATOR,
}
_TOO_LARGE = ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE
_ANY_REQUEST = _MOVED | dict.fromkeys(_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR)
_COMMIT = _MOVED | dict.fromkeys(_TOO_LARGE, ErrorCode.INVALID_COMMIT_OFFSET_SIZE)
_BY_REQUEST: dict[type, dict[ErrorCode, ErrorCode]] = {
    OffsetCommitRequest: _COMMIT,
    TxnOffsetCommitRequest: _COMMIT,
}


def coordinator_error(error: ErrorCode, request: Any = None) -> ErrorCode:
    """The error for the client that sent `request`; None: for any other."""
    table = _BY_REQUEST.get(type(request), _ANY_REQUEST)
    return table.get(error, ErrorCode.COORDINATOR_NOT_AVAILABLE)
