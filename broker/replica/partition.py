"""One local replica of a partition, in one good directory: leader, follower, or neither.

Owns what the replica knows of its log (offsets, epochs, producers) and hands questions to the role it plays
(`leader`, `follower`). Pure: disk work and answers go to `out`; what the disk did comes back through
`appended`, `synced`, `cut` and `trimmed`. Knows no image, no session, no token and no other partition.

After each call the manager asks `take_changes` what may concern others (parked fetches, AlterPartition).
"""

from __future__ import annotations

from broker.replica.config import ReplicaConfig
from broker.replica.events import DataEffect, LogAppended, LogCut, LogTrimmed, ReplicaLog
from broker.replica.messages import (
    FetchedPartition,
    FetchPartition,
    ListedOffset,
    ListOffsetsPartition,
    PartitionKey,
    ProduceResult,
)
from broker.replica.topic_settings import TopicSettings
from broker.replica.values import (
    Brokers,
    Changes,
    FindPlan,
    FollowerOutcome,
    ProduceTicket,
    ReadPlan,
    Role,
)
from metadata.errors import ApiError, ErrorCode
from metadata.image import PartitionInfo
from metadata.requests_partitions import AlteredPartition, PartitionAlteration


class Partition:
    """`incarnation` changes (by one) with every CutPartition that the partition asks for; reports of other
    incarnations are ignored here too. Offsets: `start_offset`, `end_offset` (what was accepted, perhaps not
    written), `written_end`, `synced_end`, `high_watermark`; all exclusive ends but the first."""

    key: PartitionKey
    topic: str
    directory_id: bytes
    incarnation: int
    role: Role
    leader: int | None
    """Who leads as far as this replica was told; None: nobody."""
    leader_epoch: int
    partition_epoch: int
    start_offset: int
    end_offset: int
    written_end: int
    synced_end: int
    high_watermark: int
    size_bytes: int

    def __init__(
        self,
        config: ReplicaConfig,
        *,
        key: PartitionKey,
        topic: str,
        directory_id: bytes,
        incarnation: int,
        log: ReplicaLog,
        settings: TopicSettings,
        brokers: Brokers,
    ) -> None:
        raise NotImplementedError

    # ---- what the image says -----------------------------------------------------------------

    def lead(self, info: PartitionInfo, *, now_ms: int, out: list[DataEffect]) -> None:
        """Becomes or stays leader with the newer `info`. Older partition epochs than known are ignored (the
        answer to an AlterPartition may have come before its image). While the log is being cut the role is
        IDLE; it leads once the cut is done."""
        raise NotImplementedError

    def follow(self, info: PartitionInfo, *, now_ms: int, out: list[DataEffect]) -> None:
        """Follows `info.leader` (NO_LEADER: fetches from nobody). Waiting requests are answered with
        NOT_LEADER_OR_FOLLOWER."""
        raise NotImplementedError

    def idle(self, error: ErrorCode, message: str, *, out: list[DataEffect]) -> None:
        """Neither leads nor follows any more: every waiting request is answered with `error`, and so is every
        later one until it leads again."""
        raise NotImplementedError

    def change_settings(self, settings: TopicSettings, *, now_ms: int, out: list[DataEffect]) -> None:
        """Takes up a topic's new settings; ChangeLogSettings goes out if those of the log differ."""
        raise NotImplementedError

    # ---- clients and followers ---------------------------------------------------------------

    def produce(
        self,
        ticket: ProduceTicket,
        records: bytes,
        acks: int,
        *,
        now_ms: int,
        wall_ms: int,
        out: list[DataEffect],
    ) -> ProduceResult | None:
        """Appends one batch. A result: it is refused (nothing stored), or done (acks=0). None: it waits, and
        `ticket.complete` is called later, exactly once: acks=1 when it is written here, acks=all when it is
        below the high watermark, or with REQUEST_TIMED_OUT by `tick`."""
        raise NotImplementedError

    def cancel(self, ticket: ProduceTicket) -> None:
        """Whoever asked is gone: `complete` is not called any more."""
        raise NotImplementedError

    def fetch(
        self,
        request: FetchPartition,
        *,
        replica_id: int,
        replica_epoch: int = -1,
        now_ms: int,
        out: list[DataEffect],
    ) -> FetchedPartition | ReadPlan:
        """A fetch that has just arrived, of a client (replica_id < 0) or a follower, whose offset is noted as
        acknowledged: the high watermark may move and waiting produces complete. FetchedPartition: answer at
        once (refused, or diverging). ReadPlan: read, or wait if it is empty. Every partition of a follower's
        fetch session is to be given here at each fetch, changed or not."""
        raise NotImplementedError

    def plan_read(self, request: FetchPartition, *, replica_id: int) -> FetchedPartition | ReadPlan:
        """The same for a parked fetch that is looked at again: nothing is noted."""
        raise NotImplementedError

    def readable_end(self, replica_id: int) -> int:
        """How far a fetch may read: followers to what is written, clients to the high watermark."""
        raise NotImplementedError

    def list_offset(self, request: ListOffsetsPartition) -> ListedOffset | FindPlan:
        """Start and high watermark at once; a FindPlan needs the log (`found_offset` makes the answer)."""
        raise NotImplementedError

    # ---- the ISR -----------------------------------------------------------------------------

    def isr_change(self, *, now_ms: int) -> PartitionAlteration | None:
        """What to ask the controller for now; None: nothing, or one is in flight. After it was returned it is
        in flight until `isr_answered` or newer metadata. Ask when `Changes.ISR` is set, and of every leader
        each `replica_lag_time_max_ms / 2` (followers that stopped), and again after an answer that failed
        (after a back-off: an unanswered proposal is then repeated as it was)."""
        raise NotImplementedError

    def isr_answered(
        self, result: AlteredPartition | ApiError, *, now_ms: int, out: list[DataEffect]
    ) -> None:
        """The answer to the proposal in flight; an ApiError says that it is not known what became of it."""
        raise NotImplementedError

    @property
    def isr(self) -> tuple[int, ...]:
        """The committed ISR while leading, else ()."""
        raise NotImplementedError

    @property
    def replicas(self) -> tuple[int, ...]:
        """The replicas of the newest info (also while following)."""
        raise NotImplementedError

    # ---- following ---------------------------------------------------------------------------

    def fetch_position(self) -> FetchPartition | None:
        """What to ask the leader for; None while it does not follow, or an append or cut is not finished."""
        raise NotImplementedError

    def fetched(
        self,
        part: FetchedPartition,
        *,
        asked: FetchPartition,
        now_ms: int,
        wall_ms: int,
        out: list[DataEffect],
    ) -> FollowerOutcome:
        """The leader's answer to `asked`, which is compared with the position now: answers to older questions
        change nothing."""
        raise NotImplementedError

    # ---- what the disk did, and time ---------------------------------------------------------

    def appended(self, event: LogAppended, *, now_ms: int, out: list[DataEffect]) -> None:
        raise NotImplementedError

    def synced(self, incarnation: int, end_offset: int, *, now_ms: int, out: list[DataEffect]) -> None:
        raise NotImplementedError

    def cut(self, event: LogCut, *, now_ms: int, out: list[DataEffect]) -> None:
        raise NotImplementedError

    def trimmed(self, event: LogTrimmed, *, now_ms: int, out: list[DataEffect]) -> None:
        raise NotImplementedError

    def tick(self, *, now_ms: int, out: list[DataEffect]) -> None:
        """Waiting produces whose time is over are answered."""
        raise NotImplementedError

    def next_deadline_ms(self) -> int | None:
        """When `tick` has something to do; None: never. A cheap look, it may be early."""
        raise NotImplementedError

    def expire_producers(self, wall_ms: int) -> None:
        """Forgets producers not seen for `producer_id_expiration_ms`; to be called now and then."""
        raise NotImplementedError

    def take_changes(self) -> Changes:
        """What moved since the last call; asking clears it."""
        raise NotImplementedError
