"""Simulated producers: they number what they send, retry what got no response, and remember what was
acknowledged.

A lane is one producer on one partition, with its own producer id; its batches carry sequence numbers, and
every record a number that is never used twice.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.requests.data import (
    ACKS_ALL,
    ACKS_LEADER,
    InitProducerIdRequest,
    InitProducerIdResponse,
    PartitionKey,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    ProduceResult,
)
from metaquorum.storage.batches.batch import Batches, encode_batch
from tests.sim.data_clients import RETRIABLE, Cluster, Place
from tests.sim.data_load import DataLoad, TopicPlan
from tests.sim.errors import SafetyError

WAITING_MAX = 6


@dataclass(slots=True, eq=False)
class Batch:
    """`number` counts the records of a lane from 0, `order` its batches. `first`: when it was sent, all
    earlier batches had been answered. `renumbered`: it may be stored twice. `acknowledged`: the offset in a
    response."""

    number: int
    count: int
    padding: int
    order: int
    timestamp_ms: int
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
    leader_epoch: int = -1
    sent: list[Batch] = field(default_factory=list)


class Lane:
    """One producer on one partition. With `acks` 1 it has no producer id, and nothing is promised."""

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
        self._next_order = 0
        self._proven = False
        self._next_sequence = 0

    @property
    def topic(self) -> str:
        return self._plan.name

    @property
    def promises(self) -> bool:
        """Whether an acknowledged record must be stored exactly once, permanently."""
        return self._acks == ACKS_ALL

    def add(self) -> None:
        """Adds a batch, unless too many are waiting."""
        if len(self.waiting) < WAITING_MAX:
            rng = self._cluster.engine.rng
            batch = Batch(
                self._next_number,
                rng.choice((1, 1, 2, 5)),
                rng.choice((0, 20, 200)),
                self._next_order,
                self._cluster.wall_ms(),
            )
            self._next_order += 1
            self._next_number += batch.count
            self.waiting.append(batch)
        self.pump()

    def is_idle(self) -> bool:
        return not self.waiting

    def pump(self) -> None:
        """Sends what may be sent."""
        if not self.waiting or self._backing_off or self._looking:
            return
        if self._place is None:
            self._look_up()
        elif self._producer is None and self._acks == ACKS_ALL:
            self._ask_for_id()
        else:
            # Leaders remember only the last five batches, and a leader that remembers none accepts any as the
            # first.
            window = self._cluster.load.in_flight_max if self._proven or not self.promises else 1
            first = self.waiting[0].order
            for batch in list(self.waiting):
                if not batch.flying and batch.order < first + window:
                    self._send(batch)

    def _look_up(self) -> None:
        self._looking = True

        def found(place: Place | None) -> None:
            self._looking = False
            if place is None or self._is_old(place):
                self._back_off()
                return
            self._place = place
            if not self.lives or self.lives[-1].key != place.key:
                self._begin_life(place.key)
            self.lives[-1].leader_epoch = place.leader_epoch
            self.pump()

        self._cluster.look_up(self.name, self.topic, self._index, found)

    def _is_old(self, place: Place) -> bool:
        """The image is older than one that was seen already: it still has a topic that was deleted since, or
        names an earlier leader, which may not know that its epoch is over; others acknowledged what it lacks
        (KIP-320)."""
        if any(life.key == place.key for life in self.lives[:-1]):
            return True
        return bool(self.lives) and (
            self.lives[-1].key == place.key and place.leader_epoch < self.lives[-1].leader_epoch
        )

    def _begin_life(self, key: PartitionKey) -> None:
        """The topic was recreated: waiting batches start over in it."""
        self.lives.append(Life(key))
        self._producer, self._proven = None, False
        fresh = [
            Batch(each.number, each.count, each.padding, each.order, each.timestamp_ms)
            for each in self.waiting
        ]
        self.waiting = deque(fresh)
        self._next_sequence = 0

    def _ask_for_id(self) -> None:
        if self._asking_id:
            return
        self._asking_id = True

        def answered(response: Any) -> None:
            self._asking_id = False
            if not isinstance(response, InitProducerIdResponse):
                self._back_off(keep=True)
                return
            if response.producer_id in self._cluster.producer_ids:
                raise SafetyError(f"producer id {response.producer_id} was given out twice")
            self._cluster.producer_ids.add(response.producer_id)
            self._producer = (response.producer_id, response.producer_epoch)
            self.pump()

        self._cluster.ask(self.name, self._cluster.some_broker(), InitProducerIdRequest(), 1_000, answered)

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
            timestamp_ms=batch.timestamp_ms,
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
            partitions=(ProducePartition(key=place.key, batch=Batches.arrived(records)),),
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
        cluster.marks.add(f"produce answered {result.error.name}")
        match result.error:
            case ErrorCode.NONE:
                batch.acknowledged = result.base_offset
                self._proven = self._proven or self._producer == producer
                self.waiting.remove(batch)
                if batch.tries > 1:
                    cluster.marks.add("batch acknowledged after a retry")
                self.pump()
            case ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER | ErrorCode.INVALID_PRODUCER_EPOCH if (
                self._producer != producer
            ):
                self._back_off(keep=True)
            case ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER if not batch.first:
                self._back_off(keep=True)  # an earlier one failed: this one is sent again after it
            case ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER | ErrorCode.INVALID_PRODUCER_EPOCH:
                key = self.lives[-1].key
                if not (cluster.laws.may_lose(key) or self._may_be_forgotten()):
                    raise SafetyError(
                        f"{self.name}: the first batch that waits, sequence {batch.sequence}, is refused:"
                        f" {result}"
                    )
                self._begin_epoch(producer)
            case error if error in RETRIABLE:
                self._back_off()
            case _:
                raise SafetyError(f"{self.name}: a sound batch is refused for good: {result}")

    def _may_be_forgotten(self) -> bool:
        """Retention may have deleted everything of this producer on a new leader's replica: it then accepts a
        later batch in flight as the first, as Kafka does."""
        return self._plan.retention_bytes >= 0 and self._proven

    def _begin_epoch(self, producer: tuple[int, int]) -> None:
        """Records were lost together with their acknowledgement: the waiting batches get new sequence numbers
        (KIP-360)."""
        self._cluster.marks.add("producer epoch raised after a loss")
        self._next_sequence = 0
        for batch in self.waiting:
            batch.sequence, batch.renumbered = -1, batch.tries > 0
        self._producer, self._proven = (producer[0], producer[1] + 1), False
        self._back_off(keep=True)


def lanes_of(load: DataLoad, cluster: Cluster) -> list[Lane]:
    """Every producer on every partition; one more, with lower acks, on the first topic."""
    lanes = [
        Lane(f"p{producer}-{plan.name}-{index}", cluster, plan, index, ACKS_ALL)
        for producer in range(load.producers)
        for plan in load.topics
        for index in range(plan.partitions)
    ]
    return [*lanes, Lane(f"plain-{load.topics[0].name}-0", cluster, load.topics[0], 0, ACKS_LEADER)]
