"""How simulated Kafka clients reach brokers: coroutines that send requests, find coordinators and leaders,
and read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from metaquorum.broker.server.kafka.groups import partition_of
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.requests.data import FetchedPartition, FetchPartition, FetchRequest, FetchResponse
from metaquorum.storage.batches.batch import RecordBatch, read_marker
from metaquorum.wire.messages import FindCoordinatorRequest, OffsetFetchRequest
from tests.sim.data_clients import RETRIABLE as DATA_RETRIABLE
from tests.sim.data_clients import Cluster, Place
from tests.sim.errors import SafetyError
from tests.sim.host import Process
from tests.sim.kafka.broker import KafkaBroker
from tests.sim.kafka.compaction import batches_with_gaps
from tests.sim.kafka.laws import KafkaLaws
from tests.sim.kafka.loop import SimulatedLoop, sleep_ms
from tests.sim.kafka.plan import OFFSETS

ASK_MS = 1_200
RETRIABLE = DATA_RETRIABLE | {
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.THROTTLING_QUOTA_EXCEEDED,
    ErrorCode.UNSTABLE_OFFSET_COMMIT,
}


class Answered(NamedTuple):
    """`is_current`: the broker was the coordinator when it responded, according to the committed metadata."""

    body: Any
    is_current: bool


class Record(NamedTuple):
    """A record that a reader of committed transactions received."""

    offset: int
    key: bytes | None
    value: bytes | None


class KafkaClients:
    """What all clients share. `running` False: finish what is in progress, and end."""

    def __init__(self, cluster: Cluster, laws: KafkaLaws) -> None:
        self.cluster = cluster
        self.laws = laws
        self.engine = cluster.engine
        self.marks = cluster.marks
        self.loop = SimulatedLoop(cluster.engine)
        self.running = True
        self.tasks: dict[str, asyncio.Task[None]] = {}

    def partitions(self, topic: str) -> int:
        return next(each.partitions for each in self.cluster.load.topics if each.name == topic)

    def partition_of_group(self, group: str) -> tuple[str, int]:
        """The partition that holds a group's offsets."""
        return OFFSETS, partition_of(group, self.partitions(OFFSETS))

    def begin(self, name: str, client: Any) -> None:
        """Runs a client until it ends."""
        task = self.tasks[name] = self.loop.create_task(client)
        task.add_done_callback(lambda done: done.result())

    def unfinished(self) -> str:
        return next((name for name, task in self.tasks.items() if not task.done()), "")


class Connection:
    """One client's connection to the brokers. `name` is its host on the network."""

    def __init__(self, name: str, clients: KafkaClients) -> None:
        self.name = name
        self.clients = clients
        self._cluster = clients.cluster
        self._rng = clients.engine.rng

    # ---- asking ----------------------------------------------------------------------------------

    async def ask(
        self, broker_id: int, body: Any, version: int, *, about: tuple[str, int] | None = None
    ) -> Answered | None:
        """The response of a broker; None: the outcome of the request is unknown. `about`: the partition of an
        internal topic whose coordinator gets the request."""
        future = asyncio.get_running_loop().create_future()

        def settle(answer: Answered | None) -> None:
            if not future.done():
                future.set_result(answer)

        def arrive(process: Process, answer: Callable[[Any], None]) -> None:
            if future.done() or not isinstance(process, KafkaBroker):
                return  # the client has closed the connection

            def answered(found: Any) -> None:
                answer(Answered(found, about is None or self.clients.laws.leads(process.node_id, *about)))

            process.serve(body, version, self.name, answered)

        host = self._cluster.host(broker_id)
        self._cluster.calls.shell(self.name, host, arrive, ASK_MS, settle, lambda _reason: settle(None))
        found: Answered | None = await future
        return found

    async def pause(self, low_ms: float = 30, high_ms: float = 120) -> None:
        await sleep_ms(low_ms + self._rng.random() * (high_ms - low_ms))

    async def coordinator(self, key_type: int, key: str) -> int:
        """The coordinator that some broker names; sends requests until one does."""
        while True:
            request = FindCoordinatorRequest(coordinator_keys=(key,), key_type=key_type)
            answer = await self.ask(self._cluster.some_broker(), request, 4)
            found = None if answer is None else answer.body.coordinators[0]
            if found is not None and found.error_code == ErrorCode.NONE:
                return int(found.node_id)
            await self.pause()

    async def place(self, topic: str, index: int) -> Place:
        while True:
            future = asyncio.get_running_loop().create_future()
            self._cluster.look_up(self.name, topic, index, lambda place, to=future: to.set_result(place))
            found: Place | None = await future
            if found is not None:
                return found
            await self.pause()

    # ---- reading ---------------------------------------------------------------------------------

    async def read(
        self, topic: str, index: int, position: int, max_bytes: int = 2_000
    ) -> tuple[int, list[Record]] | None:
        """Records of committed transactions from `position` on, and the next position; None: no response of
        the leader."""
        place = await self.place(topic, index)
        asked = FetchPartition(
            key=place.key, fetch_offset=position, max_bytes=max_bytes, current_leader_epoch=place.leader_epoch
        )
        request = FetchRequest(
            max_wait_ms=20, min_bytes=1, max_bytes=8_000, partitions=(asked,), read_committed=True
        )
        future = asyncio.get_running_loop().create_future()
        self._cluster.ask(self.name, place.leader, request, 800, future.set_result)
        answer = await future
        if not isinstance(answer, FetchResponse) or not answer.partitions:
            return None
        part = answer.partitions[0]
        if part.error is not ErrorCode.NONE:
            if part.error not in RETRIABLE:
                raise SafetyError(f"{self.name} reads {topic}-{index} from {position} and is told: {part}")
            return None
        batches = list(batches_with_gaps(part.records))
        next_position = max([position, *(each.header.next_offset for each in batches)])
        return next_position, list(_committed(part, batches, position))

    async def committed_offset(self, group: str, topic: str, index: int, coordinator: int) -> int | None:
        """The offset that a group has committed; None: no usable response of this coordinator."""
        kinds = OffsetFetchRequest
        part = kinds.OffsetFetchRequestTopic(name=topic, partition_indexes=(index,))
        request = OffsetFetchRequest(group_id=group, topics=(part,), require_stable=True)
        answer = await self.ask(coordinator, request, 7, about=self.clients.partition_of_group(group))
        if answer is None or answer.body.error_code != ErrorCode.NONE:
            return None
        found = answer.body.topics[0].partitions[0]
        if found.error_code == ErrorCode.UNSTABLE_OFFSET_COMMIT:
            self.clients.marks.add("offsets of a transaction waited for")
        if found.error_code != ErrorCode.NONE:
            return None
        if not answer.is_current:
            self.clients.marks.add("offsets told by a former coordinator")
            return None
        return int(found.committed_offset)


def _committed(part: FetchedPartition, batches: list[RecordBatch], position: int) -> Iterator[Record]:
    """The records that Kafka's clients pass to their user: none of aborted transactions, according to the
    list in the fetch response."""
    waiting = sorted(part.aborted or (), key=lambda each: each[1], reverse=True)
    aborted: set[int] = set()
    for batch in batches:
        header = batch.header
        while waiting and waiting[-1][1] <= header.last_offset:
            aborted.add(waiting.pop()[0])
        if header.is_control:
            marker = read_marker(header, batch.data)
            if marker is not None and not marker.committed:
                aborted.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in aborted):
            for each in batch.records():
                if each.offset >= position:
                    yield Record(each.offset, each.key, each.value)
