"""What simulated clients of partition data share: finding leaders, sending requests to brokers, handling
refusals.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.requests.data import PartitionKey
from tests.sim.calls import Calls
from tests.sim.data_laws import DataLaws
from tests.sim.data_load import DataLoad
from tests.sim.engine import Engine
from tests.sim.host import WALL_START_MS, Host
from tests.sim.marks import Marks
from tests.sim.processes import Directory

LOOKUP_MS = 400
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
    """Which broker leads a partition, according to a broker's image."""

    key: PartitionKey
    leader: int
    leader_epoch: int


class Cluster:
    """What clients know of the cluster: brokers to send requests to, and how to reach them."""

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
        """Looks up the leader of a partition in some broker's image; None: there is none, or no response."""
        host = self._directory[self.engine.rng.choice(self._brokers)]
        done: list[bool] = []

        def finish(place: Place | None) -> None:
            if not done:
                done.append(True)
                then(place)

        def arrive() -> None:
            process = host.process
            broker = None if process is None else process.broker
            if process is None or broker is None or not process.alive or process.paused:
                return
            serves = broker.node.serves(host.monotonic_ms())
            place = _place(broker.node._image, topic, index) if serves else None
            self.calls.network.send(host.name, name, lambda: finish(place), once=True)

        self.calls.network.send(name, host.name, arrive, once=True)
        self.engine.after(LOOKUP_MS, lambda: finish(None))

    def ask(
        self, name: str, broker_id: int, request: Any, timeout_ms: int, then: Callable[[Any], None]
    ) -> None:
        """Sends a request to a broker; `then` gets the response, or None."""
        host = self._directory[broker_id]
        self.calls.data(name, host, request, timeout_ms, then, lambda _reason: then(None))

    def host(self, broker_id: int) -> Host:
        return self._directory[broker_id]

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
