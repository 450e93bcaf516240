"""Values that a partition and its manager exchange, and what a partition must be given."""

from __future__ import annotations

from enum import Enum, auto
from typing import Protocol, TypeVar

import msgspec
from msgspec import Struct

from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.requests import data as data_requests

_Result_contra = TypeVar("_Result_contra", contravariant=True)


class ReplicaRole(Enum):
    """IDLE: neither leads nor follows (not assigned yet, being removed, cut before it may lead)."""

    IDLE = auto()
    LEADER = auto()
    FOLLOWER = auto()


class Changes:
    """What moved since the manager's last call of `Partition.take_changes`, as bits of an int: those of an
    enum.Flag cost a tenth of an append.

    END: a follower may read further (the leader took a batch, or the written end moved). HIGH_WATERMARK: a
    consumer may, or the log's start moved. ROLE: the role, the leader, or its epoch changed: all parked
    fetches have to be looked at again. ISR: `isr_change` may have something to propose. POSITION:
    `fetch_position` may give another answer. DEADLINE: `next_deadline_ms` may be earlier. STORED: records are
    gone from the log's start, or from anywhere in it (compaction).
    """

    NONE, END, HIGH_WATERMARK, ROLE, ISR, POSITION, DEADLINE, STORED = 0, 1, 2, 4, 8, 16, 32, 64


class BatchRefusal(Struct, frozen=True):
    """Why a batch is not stored, and what to do; `records`: the wrong ones, if records are the reason.
    `is_one_batch` False: the bytes are not one whole batch of this format."""

    error: ErrorCode
    message: str
    records: tuple[data_requests.RefusedRecord, ...] = ()
    is_one_batch: bool = True


class Brokers(Protocol):
    """What a leader looks up about other brokers, by the newest image. The manager keeps one for all
    partitions and changes what it returns; a partition never remembers an answer."""

    def epoch(self, broker_id: int) -> int | None:
        """The epoch of its registration; None if it is not registered."""
        ...

    def may_join_isr(self, broker_id: int) -> bool:
        """Registered, not fenced, not shutting down (KIP-841)."""
        ...

    def rack(self, broker_id: int) -> str | None:
        """The rack of a broker that is registered with one; else None."""
        ...


NEVER_MS = 2**63 - 1


class Ticket(Protocol[_Result_contra]):
    """One partition of a request that waits. `complete` is called at most once, and not from within the call
    that took the ticket; it may append effects (the answer to the whole request)."""

    @property
    def deadline_ms(self) -> int:
        """When to answer REQUEST_TIMED_OUT, on the clock of `now_ms`; or NEVER_MS."""
        ...

    def complete(self, result: _Result_contra) -> None: ...


ProduceTicket = Ticket[data_requests.ProduceResult]
DeleteTicket = Ticket[data_requests.DeletedRecords]


class Reader(Struct, frozen=True, kw_only=True):
    """The sender of a fetch: a client (`replica_id` below 0), perhaps of committed records only, or a
    follower, whose broker epoch is `replica_epoch` (-1: it gives none). `rack`: of a client that followers
    may serve too ("": it names none)."""

    replica_id: int = data_requests.CONSUMER
    replica_epoch: int = -1
    read_committed: bool = False
    rack: str | None = None

    @property
    def is_follower(self) -> bool:
        return self.replica_id > data_requests.CONSUMER


class ReadPlan(Struct, frozen=True):
    """What a fetch may have: whole batches of [from_offset, to_offset), at most `max_bytes` unless the first
    batch is larger. Nothing to read if the two are equal. The rest is for the head of the answer."""

    key: data_requests.PartitionKey
    from_offset: int
    to_offset: int
    max_bytes: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    leader_epoch: int

    @property
    def head(self) -> tuple[int, int, int]:
        """What a fetch session reports when there is nothing to read."""
        return self.high_watermark, self.last_stable_offset, self.log_start_offset

    @property
    def is_empty(self) -> bool:
        return self.from_offset >= self.to_offset

    def answer(
        self, data: bytes, aborted: tuple[tuple[int, int], ...] | None
    ) -> data_requests.FetchedPartition:
        """The answer with the data that was read."""
        return data_requests.FetchedPartition(
            key=self.key,
            high_watermark=self.high_watermark,
            last_stable_offset=self.last_stable_offset,
            log_start_offset=self.log_start_offset,
            leader_epoch=self.leader_epoch,
            aborted=aborted,
            records=data,
        )


class FindPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A look-up by time that needs the log: `FindOffset` with these."""

    key: data_requests.PartitionKey
    timestamp_ms: int
    below_offset: int
    leader_epoch: int


class FollowerStep(Enum):
    """The outcome of a fetched part.

    APPENDED: an append was requested; the next position comes with its completion. NOTHING: the follower
    holds what the leader could give; fetch again. CUT: the log is being cut, then fetch again. STALE: the
    answer was to an older request and changed nothing. BACK_OFF: the leader refused or sent what cannot be
    stored: try again after `replica_fetch_backoff_ms`. WAIT: only newer metadata helps.
    """

    APPENDED = auto()
    NOTHING = auto()
    CUT = auto()
    STALE = auto()
    BACK_OFF = auto()
    WAIT = auto()


class FollowerOutcome(Struct, frozen=True, kw_only=True):
    """`message`: what was wrong, for BACK_OFF and WAIT."""

    step: FollowerStep
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
