"""Simulated producers and consumers: they find leaders, retry what got no answer, and remember what was told.

A lane is one producer on one partition, with a producer id of its own; its batches carry sequence numbers,
and every record a number that is never used twice. A reader reads one partition from its beginning.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from broker.replica.messages import (
    ACKS_ALL,
    ACKS_LEADER,
    EARLIEST_TIMESTAMP,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    PartitionKey,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    ProduceResult,
)
from metadata.errors import ErrorCode
from metadata.image import MetadataImage
from storage.batch import encode_batch, iter_batches
from tests.sim.calls import Calls
from tests.sim.data_laws import DataLaws
from tests.sim.data_load import DataLoad, TopicPlan
from tests.sim.engine import Engine
from tests.sim.errors import SafetyError
from tests.sim.host import WALL_START_MS
from tests.sim.marks import Marks
from tests.sim.processes import BrokerProcess, Directory

LOOKUP_MS = 400
WAITING_MAX = 6
RETRIABLE = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.REPLICA_NOT_AVAILABLE,
    }
)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a partition is led, as a broker's image had it."""

    key: PartitionKey
    leader: int
    leader_epoch: int


class Cluster:
    """What clients know of the cluster: brokers to ask, and how to reach them."""

    def __init__(
        self,
        engine: Engine,
        calls: Calls,
        directory: Directory,
        brokers: Sequence[int],
        laws: DataLaws,
        marks: Marks,
        load: DataLoad,
    ) -> None:
        self.engine = engine
        self.calls = calls
        self._directory = directory
        self._brokers = brokers
        self.laws = laws
        self.marks = marks
        self.load = load
        self.producer_ids: set[int] = set()

    def look_up(self, name: str, topic: str, index: int, then: Callable[[Place | None], None]) -> None:
        """Ask some broker's image where a partition is led; None: nobody knows, or nobody answered."""
        host = self._directory[self.engine.rng.choice(self._brokers)]
        done: list[bool] = []

        def finish(place: Place | None) -> None:
            if not done:
                done.append(True)
                then(place)

        def arrive() -> None:
            process = host.process
            if not isinstance(process, BrokerProcess) or not process.alive or process.paused:
                return
            found = process.node.read_image(now_ms=host.monotonic_ms())
            place = _place(found[0], topic, index) if isinstance(found, tuple) else None
            self.calls.network.send(host.name, name, lambda: finish(place), once=True)

        self.calls.network.send(name, host.name, arrive, once=True)
        self.engine.after(LOOKUP_MS, lambda: finish(None))

    def ask(
        self, name: str, broker_id: int, request: Any, timeout_ms: int, then: Callable[[Any], None]
    ) -> None:
        """Send a request to a broker; `then` gets the answer, or None."""
        host = self._directory[broker_id]
        self.calls.data(name, host, request, timeout_ms, then, lambda _reason: then(None))

    def wall_ms(self) -> int:
        return WALL_START_MS + int(self.engine.now_ms)

    def some_broker(self) -> int:
        return self.engine.rng.choice(self._brokers)


def _place(image: MetadataImage, topic: str, index: int) -> Place | None:
    info = image.topics.topic_named(topic)
    found = None if info is None else image.topics.partition(info.topic_id, index)
    if found is None or found.leader < 0:
        return None
    return Place((found.topic_id, found.index), found.leader, found.leader_epoch)


@dataclass(slots=True, eq=False)
class Batch:
    """`number` counts the records of a lane from 0. `first`: when it was sent, all before it had been
    answered. `renumbered`: it may be stored twice. `acknowledged`: the offset that an answer named."""

    number: int
    count: int
    padding: int
    sequence: int = -1
    flying: bool = False
    first: bool = False
    tries: int = 0
    renumbered: bool = False
    acknowledged: int | None = None


@dataclass(slots=True)
class Life:
    """A lane's time with one topic id: what was sent and what was acknowledged in it."""

    key: PartitionKey
    sent: list[Batch] = field(default_factory=list)


class Lane:
    """One producer on one partition. With `acks` 1 it is plain: no producer id, and no promise."""

    def __init__(self, name: str, cluster: Cluster, plan: TopicPlan, index: int, acks: int) -> None:
        self.name = name
        self._cluster = cluster
        self._plan = plan
        self._index = index
        self._acks = acks
        self.lives: list[Life] = []
        self.waiting: deque[Batch] = deque()
        self._place: Place | None = None
        self._looking = False
        self._backing_off = False
        self._producer: tuple[int, int] | None = None
        self._asking_id = False
        self._next_number = 0
        self._next_sequence = 0

    @property
    def topic(self) -> str:
        return self._plan.name

    @property
    def promises(self) -> bool:
        """Whether an acknowledged record must be stored once, and for good."""
        return self._acks == ACKS_ALL

    def add(self) -> None:
        """One more batch, unless too many wait."""
        if len(self.waiting) < WAITING_MAX:
            rng = self._cluster.engine.rng
            batch = Batch(self._next_number, rng.choice((1, 1, 2, 5)), rng.choice((0, 20, 200)))
            self._next_number += batch.count
            self.waiting.append(batch)
        self.pump()

    def is_idle(self) -> bool:
        return not self.waiting

    def pump(self) -> None:
        """Send what may be sent."""
        if not self.waiting or self._backing_off or self._looking:
            return
        if self._place is None:
            self._look_up()
        elif self._producer is None and self._acks == ACKS_ALL:
            self._ask_for_id()
        else:
            flying = sum(batch.flying for batch in self.waiting)
            for batch in list(self.waiting):
                if flying >= self._cluster.load.in_flight_max:
                    break
                if not batch.flying:
                    flying += 1
                    self._send(batch)

    def _look_up(self) -> None:
        self._looking = True

        def found(place: Place | None) -> None:
            self._looking = False
            if place is None:
                self._back_off()
                return
            self._place = place
            if not self.lives or self.lives[-1].key != place.key:
                self._begin_life(place.key)
            self.pump()

        self._cluster.look_up(self.name, self.topic, self._index, found)

    def _begin_life(self, key: PartitionKey) -> None:
        """The topic is another one: what waits begins anew in it."""
        if self.lives and any(life.key == key for life in self.lives):
            self._place = None  # somebody's old image
            return
        self.lives.append(Life(key))
        self._producer = None
        fresh = [Batch(each.number, each.count, each.padding) for each in self.waiting]
        self.waiting = deque(fresh)
        self._next_sequence = 0

    def _ask_for_id(self, of: tuple[int, int] | None = None) -> None:
        if self._asking_id:
            return
        self._asking_id = True
        request = (
            InitProducerIdRequest()
            if of is None
            else InitProducerIdRequest(producer_id=of[0], producer_epoch=of[1])
        )

        def answered(response: Any) -> None:
            self._asking_id = False
            if not isinstance(response, InitProducerIdResponse):
                self._back_off(keep=True)
                return
            given = (response.producer_id, response.producer_epoch)
            if of is None or given[0] != of[0]:
                if given[0] in self._cluster.producer_ids:
                    raise SafetyError(f"producer id {given[0]} was given out twice")
                self._cluster.producer_ids.add(given[0])
            elif given[1] != of[1] + 1:
                raise SafetyError(f"producer {of} got the epoch {given[1]}")
            self._producer = given
            self.pump()

        self._cluster.ask(self.name, self._cluster.some_broker(), request, 1_000, answered)

    def _back_off(self, *, keep: bool = False) -> None:
        if not keep:
            self._place = None
        if self._backing_off:
            return
        self._backing_off = True

        def again() -> None:
            self._backing_off = False
            self.pump()

        self._cluster.engine.after(self._cluster.engine.rng.randint(20, 120), again)

    def _send(self, batch: Batch) -> None:
        place, life = self._place, self.lives[-1]
        if place is None:
            return
        if batch.sequence < 0 and self._acks == ACKS_ALL:
            batch.sequence = self._next_sequence
            self._next_sequence += batch.count
        if not batch.tries:
            life.sent.append(batch)
        batch.tries += 1
        batch.flying, batch.first = True, batch is self.waiting[0]
        producer_id, producer_epoch = self._producer or (-1, -1)
        records = encode_batch(
            base_offset=0,
            leader_epoch=-1,
            timestamp_ms=self._cluster.wall_ms(),
            values=[
                f"{self.name}:{number}:{'x' * batch.padding}".encode()
                for number in range(batch.number, batch.number + batch.count)
            ],
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=batch.sequence,
        )
        load = self._cluster.load
        request = ProduceRequest(
            acks=self._acks,
            timeout_ms=load.produce_timeout_ms,
            partitions=(ProducePartition(key=place.key, records=records),),
        )

        def answered(response: Any) -> None:
            if life is not self.lives[-1] or batch not in self.waiting:
                return
            batch.flying = False
            if isinstance(response, ProduceResponse):
                self._answered(batch, response.results[0], (producer_id, producer_epoch))
            else:
                self._back_off()

        self._cluster.ask(self.name, place.leader, request, load.produce_timeout_ms + 300, answered)

    def _answered(self, batch: Batch, result: ProduceResult, producer: tuple[int, int]) -> None:
        cluster = self._cluster
        match result.error:
            case ErrorCode.NONE:
                batch.acknowledged = result.base_offset
                self.waiting.remove(batch)
                if batch.tries > 1:
                    cluster.marks.add("batch acknowledged after a retry")
                self.pump()
            case ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER | ErrorCode.INVALID_PRODUCER_EPOCH if (
                self._producer != producer
            ):
                self._back_off(keep=True)
            case ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER if not batch.first:
                self._back_off(keep=True)  # one before it failed: it comes behind that one again
            case ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER | ErrorCode.INVALID_PRODUCER_EPOCH:
                key = self.lives[-1].key
                if not cluster.laws.may_lose(key):
                    raise SafetyError(
                        f"{self.name}: the first batch that waits, sequence {batch.sequence}, is refused:"
                        f" {result}"
                    )
                self._begin_epoch(producer)
            case error if error in RETRIABLE:
                self._back_off()
            case _:
                raise SafetyError(f"{self.name}: a sound batch is refused for good: {result}")

    def _begin_epoch(self, producer: tuple[int, int]) -> None:
        """Records were lost with what they were acknowledged by: number what waits anew (KIP-360)."""
        self._cluster.marks.add("producer epoch raised after a loss")
        self._next_sequence = 0
        for batch in self.waiting:
            batch.sequence, batch.renumbered = -1, batch.tries > 0
        self._producer = None
        self._ask_for_id(producer)


class Reader:
    """Reads one partition, from its log's start."""

    def __init__(self, name: str, cluster: Cluster, topic: str, index: int) -> None:
        self.name = name
        self._cluster = cluster
        self.topic = topic
        self._index = index
        self._place: Place | None = None
        self._key: PartitionKey | None = None
        self._epoch = -1
        self.position = 0
        self.read = 0

    def begin(self) -> None:
        self._again()

    def _again(self, pause_ms: float = 5.0, *, anew: bool = False) -> None:
        if anew:
            self._place = None
        self._cluster.engine.after(pause_ms * (0.5 + self._cluster.engine.rng.random()), self._next)

    def _next(self) -> None:
        if self._place is None:
            self._cluster.look_up(self.name, self.topic, self._index, self._found)
        else:
            self._fetch(self._place)

    def _found(self, place: Place | None) -> None:
        if place is None:
            self._again(80.0)
            return
        if place.key != self._key:
            self._key, self.position, self._epoch = place.key, 0, -1
        self._place = place
        self._next()

    def _fetch(self, place: Place) -> None:
        rng, load = self._cluster.engine.rng, self._cluster.load
        asked = FetchPartition(
            key=place.key,
            fetch_offset=self.position,
            max_bytes=rng.choice((1, 600, 4_000)),
            current_leader_epoch=place.leader_epoch if rng.random() < 0.5 else -1,
            last_fetched_epoch=self._epoch if rng.random() < 0.5 else -1,
        )
        request = FetchRequest(
            max_wait_ms=load.fetch_wait_ms, min_bytes=1, max_bytes=8_000, partitions=(asked,)
        )

        def answered(response: Any) -> None:
            if self._place is not place:
                return
            if isinstance(response, FetchResponse) and response.partitions:
                self._take(asked, response)
            elif isinstance(response, FetchResponse):
                self._again()
            else:
                self._again(60.0, anew=True)

        self._cluster.ask(self.name, place.leader, request, load.fetch_wait_ms + 800, answered)

    def _take(self, asked: FetchPartition, response: FetchResponse) -> None:
        part = response.partitions[0]
        laws = self._cluster.laws
        if part.error is ErrorCode.OFFSET_OUT_OF_RANGE or part.diverging is not None:
            if not laws.may_lose(asked.key) and self.topic != "short":
                raise SafetyError(f"{self.name} stands at {self.position} and is told: {part}")
            self._cluster.marks.add(
                "reader told that its log was replaced" if part.diverging else "reader out of range"
            )
            self._reset(asked.key)
            return
        if part.error is not ErrorCode.NONE:
            if part.error not in RETRIABLE:
                raise SafetyError(f"{self.name} is refused: {part}")
            self._again(60.0, anew=True)
            return
        for batch in iter_batches(part.records):
            if batch.header.next_offset <= self.position:
                raise SafetyError(f"{self.name} asked from {self.position} and got {batch.header}")
            if batch.header.base_offset > self.position and self.topic != "short":
                raise SafetyError(f"{self.name} lacks {self.position}..{batch.header.base_offset - 1}")
            self.position, self._epoch = batch.header.next_offset, batch.header.leader_epoch
            self.read += batch.header.records_count
        self._again(20.0 if not part.records else 3.0)

    def _reset(self, key: PartitionKey) -> None:
        """Begin again where the log begins now."""
        place = self._place
        if place is None:
            return
        asked = ListOffsetsPartition(key=key, timestamp_ms=EARLIEST_TIMESTAMP)

        def answered(response: Any) -> None:
            if (
                isinstance(response, ListOffsetsResponse)
                and response.results[0].error is ErrorCode.NONE
                and self._key == key
            ):
                self.position, self._epoch = response.results[0].offset, -1
            self._again(30.0, anew=True)

        self._cluster.ask(self.name, place.leader, ListOffsetsRequest(partitions=(asked,)), 1_000, answered)


def lanes_of(load: DataLoad, cluster: Cluster) -> list[Lane]:
    """Every producer on every partition; one more that asks for less on the first topic."""
    lanes = [
        Lane(f"p{producer}-{plan.name}-{index}", cluster, plan, index, ACKS_ALL)
        for producer in range(load.producers)
        for plan in load.topics
        for index in range(plan.partitions)
    ]
    return [*lanes, Lane(f"plain-{load.topics[0].name}-0", cluster, load.topics[0], 0, ACKS_LEADER)]
