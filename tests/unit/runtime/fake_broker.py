"""A cluster of brokers in memory for tests of the data client, and a loop on which time costs nothing.

The real rules decide what is stored, and under which sequences (`storage.partition.producers`). Faults
come from one seed: requests and answers are lost, requests arrive after their sender gave them up, leaders
move, brokers refuse with every retriable code, metadata lags. Nothing acknowledged is ever removed, unless a
test says so (`truncate`).
"""

from __future__ import annotations

import asyncio
import random
import selectors
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image.types import BrokerRegistration, NodeEndpoint, PartitionInfo, TopicInfo
from metaquorum.metadata.requests import data as api
from metaquorum.runtime.client.admin import Address, TopicDescription
from metaquorum.runtime.data_client.connections import LinkError, MetadataAnswer, Referral
from metaquorum.storage.batches.batch import BatchHeader, batch_problem, parse_header, seal_batch
from metaquorum.storage.partition.producers import Duplicate, Fenced, Fresh, OutOfOrder, ProducerTable
from metaquorum.storage.types import LogPosition

T = TypeVar("T")


class _NoWaiting(selectors.DefaultSelector):  # type: ignore[misc, valid-type]
    """Instead of waiting, time moves on."""

    loop: VirtualTimeLoop

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None:
            raise RuntimeError("everybody waits and nothing will ever happen")
        if timeout > 0:
            self.loop.now += timeout
        return super().select(0)


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """A loop whose clock jumps to the next timer."""

    def __init__(self) -> None:
        self.now = 1_000.0
        selector = _NoWaiting()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        return self.now


def run(main: Coroutine[Any, Any, T]) -> T:
    """Runs `main` in virtual time."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)


@dataclass(slots=True)
class Stored:
    header: BatchHeader
    data: bytes


@dataclass(slots=True)
class FakePartition:
    leader: int
    leader_epoch: int = 0
    batches: list[Stored] = field(default_factory=list)
    producers: ProducerTable = field(default_factory=ProducerTable)
    start_offset: int = 0

    @property
    def end_offset(self) -> int:
        return self.batches[-1].header.next_offset if self.batches else self.start_offset

    def append(self, records: bytes) -> api.ProduceResult | tuple[ErrorCode, str]:
        problem = batch_problem(records, 0, min_epoch=-1)
        if problem is not None:
            return ErrorCode.CORRUPT_MESSAGE, problem
        header = parse_header(records)
        match self.producers.check(header):
            case Fresh():
                pass
            case Duplicate(first_offset=first):
                return api.ProduceResult(key=(b"", 0), base_offset=first)
            case OutOfOrder(expected=expected):
                return (
                    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                    f"expected {expected}, got {header.base_sequence}",
                )
            case Fenced(epoch=epoch):
                return ErrorCode.INVALID_PRODUCER_EPOCH, f"epoch {epoch} is known"
        placed = header._replace(base_offset=self.end_offset, leader_epoch=self.leader_epoch)
        data = seal_batch(placed, records[61:])
        placed = parse_header(data)
        self.producers.note(placed, seen_ms=0)
        self.batches.append(Stored(placed, data))
        return api.ProduceResult(key=(b"", 0), base_offset=placed.base_offset)

    def truncate(self, end_offset: int) -> None:
        """As an unclean election does: everything from the batch with `end_offset` on is gone."""
        self.batches = [each for each in self.batches if each.header.next_offset <= end_offset]
        self.producers = ProducerTable()
        for each in self.batches:
            self.producers.note(each.header, seen_ms=0)

    def end_of_epoch(self, epoch: int) -> LogPosition:
        """The largest epoch not above `epoch`, and where it ends."""
        below = [each.header for each in self.batches if each.header.leader_epoch <= epoch]
        if not below:
            return LogPosition(offset=self.start_offset, epoch=-1)
        return LogPosition(offset=below[-1].next_offset, epoch=below[-1].leader_epoch)


@dataclass(slots=True, kw_only=True)
class Faults:
    """Chances of each, per request."""

    lose_request: float = 0.0
    lose_answer: float = 0.0
    arrive_late: float = 0.0
    refuse: float = 0.0
    refuse_after_append: float = 0.0
    move_leader: float = 0.0
    lose_metadata: float = 0.0
    lose_identity: float = 0.0


_REFUSALS = (
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.BROKER_NOT_AVAILABLE,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.CORRUPT_MESSAGE,
)


class FakeCluster:
    """Implements `Connections`. Brokers listen at ("broker", id); metadata is also at ("controller", 0),
    and at ("standby", n), which refers to `active` (None: it knows of none). Nobody is at ("dead", n)."""

    def __init__(self, *, brokers: int = 3, seed: int = 0, faults: Faults | None = None) -> None:
        self.rng = random.Random(seed)
        self.faults = faults or Faults()
        self.brokers = list(range(brokers))
        self.topics: dict[str, tuple[bytes, list[FakePartition]]] = {}
        self.bootstrap: tuple[Address, ...] = (("controller", 0),)
        self.active: Address | None = ("controller", 0)
        self.metadata_asked: list[tuple[Address, tuple[str, ...]]] = []
        self.next_producer_id = 1000
        self.epochs: dict[int, int] = {}
        self.silent: set[int] = set()
        self.script: list[tuple[ErrorCode, str]] = []
        self.produced: list[api.ProduceRequest] = []
        self.fetched: list[tuple[int, api.FetchRequest]] = []
        self.dropped: list[Address] = []
        self.closed = False
        self._free_at: dict[Address, float] = {}
        self._under_way: dict[Address, list[asyncio.Future[Any]]] = {}
        self._grown = asyncio.Event()

    def add_topic(self, name: str, partitions: int) -> list[FakePartition]:
        found = [FakePartition(leader=self.brokers[i % len(self.brokers)]) for i in range(partitions)]
        self.topics[name] = (name.encode().ljust(16, b"."), found)
        return found

    def partition(self, key: api.PartitionKey) -> FakePartition | None:
        for topic_id, partitions in self.topics.values():
            if topic_id == key[0] and key[1] < len(partitions):
                return partitions[key[1]]
        return None

    def move(self, partition: FakePartition, leader: int) -> None:
        partition.leader = leader
        partition.leader_epoch += 1

    def values(self, partition: FakePartition) -> list[bytes | None]:
        """Every value stored, in order."""
        from metaquorum.runtime.data_client.consuming.records import FetchedBatch

        return [r.value for each in partition.batches for r in FetchedBatch(each.header, each.data).records()]

    def _chance(self, probability: float) -> bool:
        return probability > 0 and self.rng.random() < probability

    # --- produce

    def produce(
        self, address: Address, request: api.ProduceRequest, *, timeout_ms: int
    ) -> asyncio.Future[api.ProduceResponse | ApiError]:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Any] = loop.create_future()
        self.produced.append(request)
        under_way = self._under_way.setdefault(address, [])
        under_way.append(done)
        if address[1] in self.silent:
            loop.call_later(timeout_ms / 1000, self._break, address, "no answer in time")
            return done
        # Timers of one moment come in no order: one connection's requests are never of one moment.
        at = max(loop.time() + self.rng.uniform(0.0005, 0.004), self._free_at.get(address, 0.0) + 1e-6)
        self._free_at[address] = at
        if self._chance(self.faults.lose_request):
            loop.call_at(at, self._break, address, "connection reset")
            return done
        if self._chance(self.faults.arrive_late):
            # The connection breaks, and what was written into it is carried out some time after.
            loop.call_at(at, self._break, address, "connection reset")
            loop.call_at(at + self.rng.uniform(0.0, 0.05), self._carry_out, address, request)
            return done
        loop.call_at(at, self._arrive, address, request, done)
        return done

    def _arrive(self, address: Address, request: api.ProduceRequest, done: asyncio.Future[Any]) -> None:
        if done.done():
            # The link broke in the meantime. What was in it may still be carried out.
            if self._chance(0.5):
                self._carry_out(address, request)
            return
        answer = self._carry_out(address, request)
        if self._chance(self.faults.lose_answer):
            self._break(address, "connection reset")
            return
        self._under_way[address].remove(done)
        done.set_result(api.ProduceResponse(results=()) if request.acks == 0 else answer)

    def _break(self, address: Address, problem: str) -> None:
        pending, self._under_way[address] = self._under_way.get(address, []), []
        for each in pending:
            if not each.done():
                each.set_exception(LinkError(problem))

    def _carry_out(self, address: Address, request: api.ProduceRequest) -> api.ProduceResponse:
        return api.ProduceResponse(
            results=tuple(self._append(address[1], each) for each in request.partitions)
        )

    def _append(self, broker_id: int, each: api.ProducePartition) -> api.ProduceResult:
        partition = self.partition(each.key)
        if self.script:
            code, message = self.script.pop(0)
            if code is not ErrorCode.NONE:
                return api.ProduceResult(key=each.key, error=code, message=message)
        if partition is None:
            return api.ProduceResult(key=each.key, error=ErrorCode.UNKNOWN_TOPIC_ID)
        if self._chance(self.faults.move_leader):
            self.move(partition, self.rng.choice(self.brokers))
        if partition.leader != broker_id:
            told = self.rng.random() < 0.5
            return api.ProduceResult(
                key=each.key,
                error=ErrorCode.NOT_LEADER_OR_FOLLOWER,
                leader=partition.leader if told else None,
                leader_epoch=partition.leader_epoch if told else -1,
            )
        if self._chance(self.faults.refuse):
            return api.ProduceResult(key=each.key, error=self.rng.choice(_REFUSALS))
        result = partition.append(each.records)
        if isinstance(result, tuple):
            return api.ProduceResult(key=each.key, error=result[0], message=result[1])
        self._grown.set()
        if self._chance(self.faults.refuse_after_append):
            code = self.rng.choice((ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, ErrorCode.REQUEST_TIMED_OUT))
            return api.ProduceResult(key=each.key, error=code)
        return result

    def drop(self, address: Address) -> None:
        self.dropped.append(address)
        self._break(address, "given up")

    # --- reading

    async def fetch(
        self, address: Address, request: api.FetchRequest, *, timeout_ms: int
    ) -> api.FetchResponse | ApiError:
        self.fetched.append((address[1], request))
        loop = asyncio.get_running_loop()
        deadline = loop.time() + request.max_wait_ms / 1000
        await asyncio.sleep(self.rng.uniform(0.0005, 0.003))
        if address[1] in self.silent:
            await asyncio.sleep(timeout_ms / 1000)
            raise LinkError("no answer in time")
        if self._chance(self.faults.lose_request):
            raise LinkError("connection reset")
        while True:
            found = tuple(self._read(address[1], each) for each in request.partitions)
            news = any(each.records or each.error or each.diverging for each in found)
            if news or loop.time() >= deadline:
                return api.FetchResponse(session_id=0, partitions=found)
            self._grown.clear()
            try:
                async with asyncio.timeout(max(0.0, deadline - loop.time())):
                    await self._grown.wait()
            except TimeoutError:
                pass

    def _read(self, broker_id: int, each: api.FetchPartition) -> api.FetchedPartition:
        partition = self.partition(each.key)
        if partition is None:
            return api.FetchedPartition(key=each.key, error=ErrorCode.UNKNOWN_TOPIC_ID, message="gone")
        if self._chance(self.faults.move_leader):
            self.move(partition, self.rng.choice(self.brokers))
        if partition.leader != broker_id:
            return api.FetchedPartition(key=each.key, error=ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if self._chance(self.faults.refuse):
            return api.FetchedPartition(key=each.key, error=ErrorCode.KAFKA_STORAGE_ERROR)
        end = partition.end_offset
        if each.last_fetched_epoch >= 0:
            theirs = partition.end_of_epoch(each.last_fetched_epoch)
            if theirs.epoch < each.last_fetched_epoch or theirs.offset < each.fetch_offset:
                return api.FetchedPartition(key=each.key, high_watermark=end, diverging=theirs)
        if not partition.start_offset <= each.fetch_offset <= end:
            return api.FetchedPartition(
                key=each.key,
                error=ErrorCode.OFFSET_OUT_OF_RANGE,
                high_watermark=end,
                log_start_offset=partition.start_offset,
            )
        records = b""
        for one in partition.batches:
            if one.header.next_offset > each.fetch_offset:
                if records and len(records) + len(one.data) > each.max_bytes:
                    break
                records += one.data
        return api.FetchedPartition(
            key=each.key, high_watermark=end, log_start_offset=partition.start_offset, records=records
        )

    async def list_offsets(
        self, address: Address, request: api.ListOffsetsRequest, *, timeout_ms: int
    ) -> api.ListOffsetsResponse | ApiError:
        await asyncio.sleep(0.001)
        if self._chance(self.faults.lose_request):
            raise LinkError("connection reset")
        return api.ListOffsetsResponse(
            results=tuple(self._list(address[1], each) for each in request.partitions)
        )

    def _list(self, broker_id: int, each: api.ListOffsetsPartition) -> api.ListedOffset:
        partition = self.partition(each.key)
        if partition is None or partition.leader != broker_id:
            return api.ListedOffset(key=each.key, error=ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if each.timestamp_ms == api.LATEST_TIMESTAMP:
            return api.ListedOffset(key=each.key, offset=partition.end_offset)
        if each.timestamp_ms == api.EARLIEST_TIMESTAMP:
            return api.ListedOffset(key=each.key, offset=partition.start_offset)
        from metaquorum.runtime.data_client.consuming.records import FetchedBatch

        for stored in partition.batches:
            for record in FetchedBatch(stored.header, stored.data).records():
                if record.timestamp_ms >= each.timestamp_ms:
                    return api.ListedOffset(
                        key=each.key, offset=record.offset, timestamp_ms=record.timestamp_ms
                    )
        return api.ListedOffset(key=each.key)

    # --- the rest

    async def init_producer_id(
        self, address: Address, request: api.InitProducerIdRequest, *, timeout_ms: int
    ) -> api.InitProducerIdResponse | ApiError:
        await asyncio.sleep(0.001)
        if self._chance(self.faults.lose_identity):
            raise LinkError("connection reset")
        if request.producer_id < 0:
            self.next_producer_id += 1
            answer = api.InitProducerIdResponse(producer_id=self.next_producer_id, producer_epoch=0)
        else:
            answer = api.InitProducerIdResponse(
                producer_id=request.producer_id, producer_epoch=request.producer_epoch + 1
            )
        if self._chance(self.faults.lose_identity):
            raise LinkError("connection reset")
        return answer

    async def metadata(
        self, address: Address, names: Sequence[str], *, timeout_ms: int, stale: bool = False
    ) -> MetadataAnswer | Referral | ApiError:
        self.metadata_asked.append((address, tuple(names)))
        await asyncio.sleep(0.001)
        if address[0] == "dead":
            raise LinkError("connection refused")
        if address[0] == "standby" and not stale:
            return Referral(to=self.active, problem="NOT_CONTROLLER")
        if self._chance(self.faults.lose_metadata) or (address[0] == "broker" and address[1] in self.silent):
            raise LinkError("connection refused")
        brokers = tuple(
            BrokerRegistration(
                broker_id=each,
                epoch=1,
                incarnation_id=bytes(16),
                fenced=False,
                endpoints=(NodeEndpoint("GRPC", "broker", each, 0),),
            )
            for each in self.brokers
        )
        topics = tuple(self._describe(name) for name in names if name in self.topics)
        unknown = frozenset(name for name in names if name not in self.topics)
        linearizable = address[0] == "controller"
        return MetadataAnswer(
            brokers=brokers, topics=topics, unknown_names=unknown, linearizable=linearizable
        )

    def _describe(self, name: str) -> TopicDescription:
        topic_id, partitions = self.topics[name]
        found = tuple(
            PartitionInfo(
                topic_id=topic_id,
                index=index,
                replicas=tuple(self.brokers),
                isr=tuple(self.brokers),
                leader=each.leader,
                leader_epoch=each.leader_epoch,
                partition_epoch=each.leader_epoch,
                leader_recovery_state=0,
                directories=(bytes(16),) * len(self.brokers),
            )
            for index, each in enumerate(partitions)
        )
        return TopicDescription(info=TopicInfo(topic_id, name), partitions=found)

    async def close(self) -> None:
        self.closed = True
