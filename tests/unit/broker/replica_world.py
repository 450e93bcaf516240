"""One replica on a disk of lists: the Partition under test, and what its disk was asked for and has done.

Nothing happens by itself: a test lets the disk write, sync, lose what is not synced, or open anew.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from metaquorum.broker.replica.disk_work import (
    AppendPartition,
    CutPartition,
    LogAppended,
    LogCut,
    ReplicaLog,
    ReplicaLogTrimmed,
    TrimTo,
)
from metaquorum.broker.replica.events import DataEffect
from metaquorum.broker.replica.partition.partition import Partition
from metaquorum.broker.replica.partition.values import FollowerOutcome, Reader, ReadPlan
from metaquorum.broker.replica.topic_settings import TopicSettings
from metaquorum.metadata.image import PartitionInfo
from metaquorum.metadata.node_configs import ReplicaConfig
from metaquorum.metadata.requests.data import (
    ACKS_ALL,
    CONSUMER,
    FetchedPartition,
    FetchPartition,
    PartitionKey,
    ProducePartition,
    ProduceResult,
)
from metaquorum.raft.effects import Outbox
from metaquorum.storage.batches.batch import Batches, encode_batch, read_marker
from metaquorum.storage.batches.format import hop_headers, parse_header
from metaquorum.storage.log.epochs import EpochTable
from metaquorum.storage.partition.producers import ProducerTable

TOPIC = b"t" * 16
KEY: PartitionKey = (TOPIC, 0)
DIRECTORY = b"d" * 16
WALL_MS = 1_700_000_000_000
CONFIG = ReplicaConfig(broker_id=1)


def batch(
    *values: bytes,
    producer: int = -1,
    epoch: int = -1,
    sequence: int = -1,
    timestamp_ms: int = WALL_MS,
    base_offset: int = 0,
    leader_epoch: int = -1,
) -> bytes:
    """A batch as a producer sends it, or (with offset and epoch) as a leader stores it."""
    return encode_batch(
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        timestamp_ms=timestamp_ms,
        values=list(values or (b"v",)),
        producer_id=producer,
        producer_epoch=0 if producer >= 0 and epoch < 0 else epoch,
        base_sequence=sequence,
    )


def info(
    *,
    leader: int = 1,
    epoch: int = 1,
    partition_epoch: int = 1,
    isr: Sequence[int] = (1, 2, 3),
    replicas: Sequence[int] = (1, 2, 3),
    recovery: int = 0,
) -> PartitionInfo:
    return PartitionInfo(
        topic_id=TOPIC,
        index=0,
        replicas=tuple(replicas),
        isr=tuple(isr),
        leader=leader,
        leader_epoch=epoch,
        partition_epoch=partition_epoch,
        leader_recovery_state=recovery,
        directories=tuple(DIRECTORY for _ in replicas),
    )


@dataclass
class KnownBrokers:
    """Every broker has epoch 100 + its id and may join, unless a test says otherwise."""

    epochs: dict[int, int] = field(default_factory=dict)
    barred: set[int] = field(default_factory=set)
    racks: dict[int, str] = field(default_factory=dict)

    def rack(self, broker_id: int) -> str | None:
        return self.racks.get(broker_id)

    def epoch(self, broker_id: int) -> int | None:
        return self.epochs.get(broker_id, 100 + broker_id)

    def may_join_isr(self, broker_id: int) -> bool:
        return broker_id not in self.barred


@dataclass
class Ticket:
    """Collects the one answer."""

    deadline_ms: int = 10**9
    results: list[ProduceResult] = field(default_factory=list)

    def complete(self, result: ProduceResult) -> None:
        assert not self.results, "a ticket is completed once"
        self.results.append(result)

    @property
    def result(self) -> ProduceResult:
        assert len(self.results) == 1, "nobody answered"
        return self.results[0]


class ListDisk:
    """A replica's batches. `synced` counts those that survive a loss of power."""

    def __init__(self) -> None:
        self.start = 0
        self.batches: list[bytes] = []
        self.synced = 0
        self.queue: deque[DataEffect] = deque()

    @property
    def end(self) -> int:
        return parse_header(self.batches[-1]).next_offset if self.batches else self.start

    @property
    def synced_end(self) -> int:
        return parse_header(self.batches[self.synced - 1]).next_offset if self.synced else self.start

    @property
    def size_bytes(self) -> int:
        return sum(len(each) for each in self.batches)

    def opened(self, high_watermark: int = 0) -> ReplicaLog:
        """The log as it is found when it is opened: tables rebuilt from the batches."""
        epochs, producers = EpochTable(), ProducerTable()
        for each in self.batches:
            header = parse_header(each)
            epochs = epochs.append(header.leader_epoch, header.base_offset)
            producers.note(header, seen_ms=header.max_timestamp_ms, marker=read_marker(header, each))
        return ReplicaLog(
            start_offset=self.start,
            end_offset=self.end,
            high_watermark=min(max(high_watermark, self.start), self.end),
            size_bytes=self.size_bytes,
            epochs=epochs,
            producers=producers,
        )

    def append(self, data: bytes) -> None:
        hops = hop_headers(data)
        edges = [*(hop[0] for hop in hops), len(data)]
        if not self.batches:
            self.start = min(self.start, hops[0][1])
        for n, (position, base, _, _) in enumerate(hops):
            assert base == self.end, f"batch at {base} does not follow {self.end}"
            self.batches.append(data[position : edges[n + 1]])

    def cut(self, end: int) -> None:
        while self.batches and self.end > end:
            self.batches.pop()
        self.synced = len(self.batches)

    def read(self, plan: ReadPlan) -> bytes:
        chosen: list[bytes] = []
        for each in self.batches:
            header = parse_header(each)
            if header.next_offset <= plan.from_offset:
                continue
            if header.base_offset >= plan.to_offset:
                break
            if chosen and sum(map(len, chosen)) + len(each) > plan.max_bytes:
                break
            chosen.append(each)
        return b"".join(chosen)

    def lose_power(self, kept_unsynced: int = 0) -> None:
        del self.batches[self.synced + kept_unsynced :]
        self.synced = len(self.batches)
        self.queue.clear()


class Replica:
    """A Partition and its disk. `out` holds the effects that are not work for the disk."""

    def __init__(
        self,
        broker_id: int = 1,
        *,
        disk: ListDisk | None = None,
        config: ReplicaConfig = CONFIG,
        settings: TopicSettings | None = None,
        brokers: KnownBrokers | None = None,
        high_watermark: int = 0,
    ) -> None:
        self.broker_id = broker_id
        self.brokers = brokers or KnownBrokers()
        self.disk = disk or ListDisk()
        self.now_ms = 0
        self.wall_ms = WALL_MS
        self.out: Outbox[DataEffect] = Outbox()
        self.partition = Partition(
            replace(config, broker_id=broker_id),
            key=KEY,
            topic="logs",
            directory_id=DIRECTORY,
            incarnation=1,
            log=self.disk.opened(high_watermark),
            settings=settings or TopicSettings(),
            brokers=self.brokers,
            out=self.out,
        )

    def take(self) -> list[DataEffect]:
        """All effects since the last call, also those for the disk, which gets its work."""
        out = self.out.take()
        self.disk.queue.extend(
            each for each in out if isinstance(each, AppendPartition | CutPartition | TrimTo)
        )
        return out

    # ---- the disk's turns --------------------------------------------------------------------

    def work(self, count: int | None = None) -> None:
        """The disk carries out what it was asked for, `count` pieces of it (None: all); nothing is synced."""
        self.take()
        queue = self.disk.queue
        for _ in range(len(queue) if count is None else min(count, len(queue))):
            self._carry_out(queue.popleft())

    def _carry_out(self, work: DataEffect) -> None:
        disk, partition = self.disk, self.partition
        match work:
            case AppendPartition():
                disk.append(work.batches.data)
                event = LogAppended(
                    directory_id=DIRECTORY,
                    key=KEY,
                    incarnation=work.incarnation,
                    end_offset=disk.end,
                    size_bytes=disk.size_bytes,
                )
                partition.appended(event, now_ms=self.now_ms)
            case CutPartition():
                if work.start_over:
                    disk.batches, disk.synced, disk.start = [], 0, work.end_offset
                disk.cut(work.end_offset)
                cut = LogCut(directory_id=DIRECTORY, key=KEY, incarnation=work.incarnation, log=disk.opened())
                partition.cut(cut, now_ms=self.now_ms)
            case TrimTo():
                self.trim(work.start_offset, work.incarnation)

    def trim(self, start: int, incarnation: int | None = None) -> None:
        """Batches wholly below `start` go, as if each were a segment."""
        disk = self.disk
        while disk.batches and parse_header(disk.batches[0]).next_offset <= start:
            disk.start = parse_header(disk.batches.pop(0)).next_offset
            disk.synced = max(0, disk.synced - 1)
        event = ReplicaLogTrimmed(
            directory_id=DIRECTORY,
            key=KEY,
            incarnation=self.partition.incarnation if incarnation is None else incarnation,
            start_offset=disk.start,
            size_bytes=disk.size_bytes,
        )
        self.partition.trimmed(event, now_ms=self.now_ms)

    def sync(self) -> None:
        disk = self.disk
        disk.synced = len(disk.batches)
        self.partition.synced(
            self.partition.incarnation, disk.synced_end, self.partition.size_bytes, now_ms=self.now_ms
        )

    def settle(self) -> None:
        """The disk writes and syncs all that it was asked for."""
        while True:
            self.take()
            if not self.disk.queue:
                break
            self.work()
        self.sync()

    # ---- what others ask ---------------------------------------------------------------------

    def lead(self, what: PartitionInfo) -> None:
        self.partition.lead(what, now_ms=self.now_ms)

    def follow(self, what: PartitionInfo) -> None:
        self.partition.follow(what, now_ms=self.now_ms)

    def send(self, records: bytes, acks: int = ACKS_ALL, *, timeout_ms: int = 10**9) -> Ticket:
        """A ticket that has the result already, or waits for it."""
        ticket = Ticket(self.now_ms + timeout_ms)
        result = self.partition.produce(
            ticket, ProducePartition(key=KEY, batch=Batches.arrived(records)), acks, wall_ms=self.wall_ms
        )
        if result is not None:
            assert not ticket.results
            ticket.results.append(result)
        return ticket

    def fetch_as(
        self,
        broker_id: int,
        offset: int,
        *,
        epoch: int | None = None,
        last: int = -1,
        broker_epoch: int = 0,
        start: int = -1,
    ) -> FetchedPartition | ReadPlan:
        """A fetch that arrives, of a follower with its right broker epoch unless another is named."""
        request = FetchPartition(
            key=KEY,
            fetch_offset=offset,
            max_bytes=2**20,
            current_leader_epoch=self.partition.leader_epoch if epoch is None else epoch,
            last_fetched_epoch=last,
            log_start_offset=start,
        )
        known = self.brokers.epoch(broker_id) if broker_id >= 0 else None
        return self.partition.fetch(
            request,
            Reader(replica_id=broker_id, replica_epoch=broker_epoch or (-1 if known is None else known)),
            now_ms=self.now_ms,
        )

    def read(self, offset: int) -> bytes:
        """What a consumer gets from `offset` on."""
        plan = self.fetch_as(CONSUMER, offset)
        assert isinstance(plan, ReadPlan), plan
        return self.disk.read(plan)

    def answer(self, position: FetchPartition, broker_id: int) -> FetchedPartition:
        """The whole answer to a follower's fetch, its bytes read at once."""
        plan = self.partition.fetch(
            position,
            Reader(replica_id=broker_id, replica_epoch=self.brokers.epoch(broker_id) or -1),
            now_ms=self.now_ms,
        )
        return plan if isinstance(plan, FetchedPartition) else answered(plan, self.disk.read(plan))

    def take_answer(self, part: FetchedPartition, asked: FetchPartition) -> FollowerOutcome:
        return self.partition.fetched(part, asked=asked, now_ms=self.now_ms, wall_ms=self.wall_ms)


def answered(plan: ReadPlan, records: bytes) -> FetchedPartition:
    """The answer that the manager makes of a plan and the bytes read for it."""
    return FetchedPartition(
        key=plan.key,
        high_watermark=plan.high_watermark,
        log_start_offset=plan.log_start_offset,
        leader_epoch=plan.leader_epoch,
        records=records,
    )
