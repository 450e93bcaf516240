"""A simulated operator: creates, grows and deletes topics, moves replicas, elects leaders, removes brokers.

Reads the committed image as any tool does, so what it knows may be out of date.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from metaquorum.controller.partitions.rules import UNCLEAN_LEADER_ELECTION_ENABLE
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.image import TOPIC_RESOURCE, ConfigResource, MetadataImage, PartitionInfo
from metaquorum.metadata.requests.common import (
    BindBrokerIdRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    NewTopic,
    UnbindBrokerIdRequest,
    UnregisterBrokerRequest,
)
from metaquorum.metadata.requests.partitions import (
    AlterReassignmentsRequest,
    CreatePartitionsRequest,
    ElectionResult,
    ElectLeadersRequest,
    ElectLeadersResponse,
    TopicGrowth,
    WantedReplicas,
)
from metaquorum.metadata.requests.settings import AlterConfigsRequest, ConfigChange, ConfigOp, OpKind
from tests.sim.calls import Calls
from tests.sim.committed import CommittedLog
from tests.sim.engine import Engine
from tests.sim.load import Load
from tests.sim.marks import Marks
from tests.sim.processes import Directory

NAMES = tuple(f"load-{number}" for number in range(4))
TIMEOUT_MS = 1_500


class Operator:
    """One thread of requests. `target` returns the controller to send to."""

    def __init__(
        self,
        engine: Engine,
        calls: Calls,
        directory: Directory,
        load: Load,
        log: CommittedLog,
        marks: Marks,
        target: Callable[[], int],
    ) -> None:
        self._engine = engine
        self._calls = calls
        self._directory = directory
        self._load = load
        self._log = log
        self._marks = marks
        self._target = target
        self.running = True
        self._actions: list[Callable[[MetadataImage], Any]] = [self._create, self._create, self._grow]
        for wanted, actions in (
            (load.delete, [self._delete]),
            (load.reassign, [self._reassign, self._reassign, self._reassign, self._cancel]),
            (load.elect, [self._prefer, self._elect_uncleanly]),
            (load.unclean, [self._allow_unclean]),
            (load.unregister, [self._unregister]),
            (load.generated_ids, [self._rebind]),
        ):
            self._actions += actions if wanted else []

    def begin(self) -> None:
        self._engine.after(self._engine.rng.randint(*self._load.operator_pause_ms), self._next)

    def _next(self) -> None:
        if not self.running:
            return
        request = self._engine.rng.choice(self._actions)(self._log.image)
        if request is None:
            self.begin()
            return
        self._engine.trace("admin", _told(request))
        target = self._directory[self._target()]
        self._calls.client("admin", target, request, TIMEOUT_MS, self._answered, self._failed, once=True)

    def _answered(self, response: Any, _outright: bool) -> None:
        if isinstance(response, ElectLeadersResponse):
            self._marks_of(response.results)
        self.begin()

    def _failed(self, _reason: str) -> None:
        self.begin()

    def _marks_of(self, results: Sequence[ElectionResult]) -> None:
        if any(result.error is ErrorCode.NONE for result in results):
            self._marks.add("leader elected on request")

    # ---- requests --------------------------------------------------------------------------------

    def _create(self, image: MetadataImage) -> Any:
        rng = self._engine.rng
        name = rng.choice(NAMES)
        if image.topics.topic_named(name) is not None:
            return None
        count, factor = rng.randint(1, self._load.partitions_max), rng.randint(1, min(3, self._load.brokers))
        topic = NewTopic(name=name, partitions=count, replication_factor=factor)
        return CreateTopicsRequest(topics=(topic,))

    def _grow(self, image: MetadataImage) -> Any:
        info = image.topics.topic_named(self._engine.rng.choice(NAMES))
        if info is None:
            return None
        count = image.topics.partition_count_of(info.topic_id) + 1
        if count > self._load.partitions_max:
            return None
        return CreatePartitionsRequest(topics=(TopicGrowth(name=info.name, count=count),))

    def _delete(self, image: MetadataImage) -> Any:
        return DeleteTopicsRequest(topics=(self._engine.rng.choice(NAMES),))

    def _partition(self, image: MetadataImage) -> tuple[str, PartitionInfo] | None:
        rng = self._engine.rng
        info = image.topics.topic_named(rng.choice(NAMES))
        if info is None:
            return None
        partition = image.topics.partition(
            info.topic_id, rng.randrange(image.topics.partition_count_of(info.topic_id))
        )
        return None if partition is None else (info.name, partition)

    def _reassign(self, image: MetadataImage) -> Any:
        rng, chosen = self._engine.rng, self._partition(image)
        brokers = sorted(image.brokers)
        if chosen is None or not brokers:
            return None
        name, partition = chosen
        size = min(len(brokers), max(1, len(partition.replicas) - len(partition.adding) + rng.randint(-1, 1)))
        wanted = WantedReplicas(
            topic=name, partition=partition.index, replicas=tuple(rng.sample(brokers, size))
        )
        return AlterReassignmentsRequest(wanted=(wanted,))

    def _cancel(self, image: MetadataImage) -> Any:
        moving = []
        for name in NAMES:
            info = image.topics.topic_named(name)
            if info is not None:
                found = image.topics.partitions_of(info.topic_id)
                moving += [(name, each) for each in found if each.adding or each.removing]
        if not moving:
            return None
        name, partition = self._engine.rng.choice(moving)
        wanted = WantedReplicas(topic=name, partition=partition.index, replicas=None)
        return AlterReassignmentsRequest(wanted=(wanted,))

    def _prefer(self, image: MetadataImage) -> Any:
        return ElectLeadersRequest(unclean=False, partitions=self._some(image))

    def _elect_uncleanly(self, image: MetadataImage) -> Any:
        named = self._some(image)
        self._log.unclean_asked.update([None] if named is None else named)
        return ElectLeadersRequest(unclean=True, partitions=named)

    def _some(self, image: MetadataImage) -> tuple[tuple[str, int], ...] | None:
        chosen = self._partition(image)
        if chosen is None or self._engine.rng.random() < 0.3:
            return None
        return ((chosen[0], chosen[1].index),)

    def _allow_unclean(self, image: MetadataImage) -> Any:
        rng = self._engine.rng
        op = ConfigOp(
            kind=OpKind.SET, name=UNCLEAN_LEADER_ELECTION_ENABLE, value=rng.choice(("true", "false"))
        )
        name = rng.choice(NAMES)
        if image.topics.topic_named(name) is None:
            return None
        change = ConfigChange(resource=ConfigResource(TOPIC_RESOURCE, name), ops=(op,))
        return AlterConfigsRequest(changes=(change,))

    def _unregister(self, image: MetadataImage) -> Any:
        rng = self._engine.rng
        brokers = sorted(image.brokers)
        if not brokers or rng.random() < 0.6:
            return None
        return UnregisterBrokerRequest(broker_id=rng.choice(brokers))

    def _rebind(self, image: MetadataImage) -> Any:
        rng = self._engine.rng
        brokers = sorted(image.brokers)
        if not brokers or rng.random() < 0.7:
            return None
        if rng.random() < 0.5:
            return UnbindBrokerIdRequest(key=f"old-host-{rng.randrange(2)}")
        return BindBrokerIdRequest(key=f"old-host-{rng.randrange(2)}", broker_id=rng.choice(brokers))


def _told(request: Any) -> str:
    """A request as one short line."""
    text = repr(request)
    return text if len(text) <= 160 else text[:157] + "..."
