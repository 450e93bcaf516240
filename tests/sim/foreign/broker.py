"""A broker of Apache Kafka 3.7 in a simulated cluster: what controllers hear of it, and what it must be told.

Written from the captures and Kafka's behaviour (KIP-631, KIP-595, KIP-497), with no code of our broker: it
has no lease and never fences itself, heartbeats as soon as an answer came while it starts, says the offset of
the last record that it applied, retries with backoffs of its own, and registers again as the same
incarnation. What it asks goes through Kafka's messages and the code that translates them for controllers.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

from msgspec import structs

from metaquorum.clients.kafka.raft_messages import (
    api_of,
    request_body,
    request_of,
    response_body,
    response_of,
)
from metaquorum.listeners.forwarded import nodes
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.features import DEFAULT_METADATA_VERSION
from metaquorum.wire import codec
from metaquorum.wire import messages as wire
from metaquorum.wire.table import API_BY_NAME
from tests.raft.kafka_voter import REQUEST_TIMEOUT_MS, KafkaStops
from tests.raft.world import MemoryDisk
from tests.sim.errors import SafetyError
from tests.sim.foreign.observer import KafkaObserver
from tests.sim.host import Host
from tests.sim.processes import CLUSTER_ID, HEARTBEAT_INTERVAL_MS, SESSION_TIMEOUT_MS, directory_id

if TYPE_CHECKING:
    from tests.sim.foreign.world import ForeignWorld

TICK_MS, STARTING_BEAT_MS, ISR_RETRY_MS = 10, 15, 50
REGISTRATION_TIMEOUT_MS, SHUTDOWN_TIMEOUT_MS, CHANNEL_TIMEOUT_MS = 20_000, 8_000, 3_000
ISR_EVERY_MS = (200, 1_500)
VERSIONS = {
    "BrokerRegistration": 3,
    "BrokerHeartbeat": 1,
    "AlterPartition": 3,
    "Fetch": 16,
    "FetchSnapshot": 0,
}
HANDLERS: dict[str, Any] = {
    "BrokerRegistration": nodes.broker_registration.handle,
    "BrokerHeartbeat": nodes.broker_heartbeat.handle,
    "AlterPartition": nodes.alter_partition.handle,
}
STARTING, RECOVERY, RUNNING, LEAVING = "starting", "recovery", "running", "leaving"


class _Asked:
    """Awaited by a translation: gives the request out, and takes the response in."""

    def __init__(self, request: Any) -> None:
        self.request = request

    def __await__(self) -> Generator[Any, Any, Any]:
        return (yield self.request)


class _Call:
    """What the translation knows of the call at the controller."""

    def __init__(self, version: int) -> None:
        self.version = version

    async def answer(self, request: Any, kind: type) -> Any:
        response = await _Asked(request)
        assert isinstance(response, (kind, ApiError))
        return response


class KafkaBroker:
    """The processes of one broker id, one after another. `disk` survives them."""

    def __init__(self, world: ForeignWorld, broker_id: int) -> None:
        self.world, self.node_id = world, broker_id
        self.name = f"k{broker_id}"
        self.rng = random.Random(world.rng.getrandbits(64))
        self.disk = MemoryDisk()
        self.run = 0
        self.is_up = False
        self.state = STARTING
        self.epoch = self.highest_epoch = -1
        self.clean_epoch = -1
        self.asked = 0
        self.incarnation_id = b""

    # ---- life ------------------------------------------------------------------------------------

    def boot(self) -> None:
        if self.is_up:
            return
        self.run += 1
        self.is_up, self.state, self.epoch = True, STARTING, -1
        self.incarnation_id = self.rng.randbytes(16)
        self.failures, self.in_flight, self.again = 0, False, self.rng.randrange(3)
        self.observer = KafkaObserver(
            self.node_id,
            self.world.controller_ids,
            self.disk,
            random.Random(self.rng.getrandbits(64)),
            self._now(),
        )
        self.observer.start()
        self.next_ms = self.started_ms = self._now()
        self.leaves_by_ms: int | None = None
        self.checked_to = 0
        self.isr_at_ms = self._now() + self.rng.randint(*ISR_EVERY_MS)
        self._trace("boots")
        self._tick(self.run)

    def stop(self) -> None:
        """SIGTERM: in good order if it serves, else at once."""
        if self.is_up and self.state == RUNNING:
            self.state, self.next_ms = LEAVING, self._now()
            self.leaves_by_ms = self._now() + SHUTDOWN_TIMEOUT_MS
        elif self.is_up and self.state != LEAVING:
            self.end("stops while it starts")

    def end(self, why: str) -> None:
        """Killed, or at the end of its way."""
        if not self.is_up:
            return
        self._trace(why)
        self.is_up = False
        self.run += 1
        self.world.engine.after(self.rng.randint(*self.world.profile.down_ms), self.boot)

    def _now(self) -> int:
        return int(self.world.engine.now_ms)

    def _trace(self, text: str) -> None:
        self.world.engine.trace(self.name, text)

    def _tick(self, run: int) -> None:
        if run != self.run:
            return
        now = self._now()
        self._observe(lambda: self.observer.tick(now))
        late = self.leaves_by_ms is not None and now >= self.leaves_by_ms
        if late or (self.epoch < 0 and now - self.started_ms >= REGISTRATION_TIMEOUT_MS):
            self.end("waited long enough")
            return
        if not self.in_flight and now >= self.next_ms:
            self._speak()
        if self.state == RUNNING and now >= self.isr_at_ms:
            self.isr_at_ms = now + self.rng.randint(*ISR_EVERY_MS)
            self._change_an_isr()
        self.world.engine.after(TICK_MS, lambda: self._tick(run))

    # ---- the log ---------------------------------------------------------------------------------

    def _observe(self, step: Callable[[], None]) -> None:
        start, end = self.disk.start, self.disk.end
        try:
            step()
        except KafkaStops as error:
            raise SafetyError(f"Kafka's broker {self.node_id} would end: {error}") from error
        if self.disk.start != start:
            self.world.marks.add("Kafka's broker fetched a snapshot")
        elif self.disk.end < end:
            self.world.marks.add("Kafka's broker cut its log")
        sends, self.observer.sends = self.observer.sends, []
        for to, number, request in sends:
            self._fetch(to, number, request)

    def _fetch(self, to: int, number: int, request: Any) -> None:
        api, run = api_of(request), self.run
        version = VERSIONS[api]
        body = request_body(structs.replace(request, cluster_id=CLUSTER_ID), version)
        asked = request_of(_carried(body, version), version, cluster_id=CLUSTER_ID, node_id=to)

        def finish(response: Any, _outright: bool) -> None:
            answer = response_of(
                _carried_back(response_body(response, version), api, version), version, request
            )
            if run == self.run:
                self._observe(lambda: self.observer.on_response(to, number, answer, self._now()))

        def fail(_reason: str) -> None:
            if run == self.run:
                self._observe(lambda: self.observer.failed(to, number))

        self.world.calls.foreign(self.name, self._host(to), asked, REQUEST_TIMEOUT_MS, finish, fail)

    def _host(self, node_id: int) -> Host:
        return self.world.directory[node_id]

    def own_registration(self) -> int | None:
        """The epoch of its id in what it has applied."""
        known = self.observer.state.image.brokers.get(self.node_id)
        return None if known is None else known.epoch

    # ---- its channel to the controller -----------------------------------------------------------

    def _ask(
        self,
        body: Any,
        then: Callable[[Any], None],
        fail: Callable[[], None],
        seen: Callable[[Any, bool], None] = lambda response, outright: None,
    ) -> None:
        """Asks whom it follows; until it follows anyone it waits. `seen`: the response that is translated."""
        target, run = self.observer.leader_id, self.run
        if target is None:
            fail()
            return
        api = type(body).__name__.removesuffix("Request")
        version = VERSIONS[api]
        translation = HANDLERS[api](_carried(body, version), _Call(version))
        request = translation.send(None)

        def finish(response: Any, outright: bool) -> None:
            seen(response, outright)
            try:
                translation.send(response)
            except StopIteration as end:
                if run == self.run:
                    then(_carried_back(end.value, api, version))

        def failed(_reason: str) -> None:
            translation.close()
            if run == self.run:
                fail()

        self.world.calls.client(
            self.name, self._host(target), request, CHANNEL_TIMEOUT_MS, finish, failed, once=True
        )

    def _speak(self) -> None:
        self.in_flight = True
        if self.epoch < 0 or (self.again and self.own_registration() is None):
            self._register()
        else:
            self._beat()

    def _failed(self) -> None:
        self.in_flight, self.failures = False, self.failures + 1
        backoff = min(100 * 2 ** min(self.failures, 6), SESSION_TIMEOUT_MS // 2)
        self.next_ms = self._now() + self.rng.randint(backoff // 2, backoff)

    def _register(self) -> None:
        types = wire.BrokerRegistrationRequest
        listener = types.Listener(
            name="PLAINTEXT", host="127.0.0.1", port=9_000 + self.node_id, security_protocol=0
        )
        levels = types.Feature(
            name="metadata.version", min_supported_version=1, max_supported_version=DEFAULT_METADATA_VERSION
        )
        body = types(
            broker_id=self.node_id,
            cluster_id=CLUSTER_ID,
            incarnation_id=self.incarnation_id,
            listeners=(listener,),
            features=(levels,),
            log_dirs=(directory_id(self.node_id),),
            previous_broker_epoch=self.clean_epoch,
        )

        def then(answer: Any) -> None:
            if answer.error_code:
                self._failed()
                return
            self._registered(answer.broker_epoch)

        self.asked += 1
        at, incarnation = self.asked, self.incarnation_id
        registrations = self.world.registrations
        if self.observer.leader_id is not None:
            registrations.called(self, at, self._now())

        def seen(response: Any, outright: bool) -> None:
            if incarnation == self.incarnation_id:
                registrations.answered(self, at, response, outright, self._now() + 1)

        self._ask(body, then, self._failed, seen)

    def _registered(self, epoch: int) -> None:
        same = self.epoch >= 0
        if epoch < self.highest_epoch or (not same and epoch == self.highest_epoch):
            raise SafetyError(
                f"broker {self.node_id} was given epoch {epoch}, and {self.highest_epoch} before, as another"
            )
        self.again -= same
        self._trace(f"has epoch {epoch}")
        self.world.marks.add("Kafka's broker registered again" if same else "Kafka's broker registered")
        self.epoch = self.highest_epoch = epoch
        self.in_flight, self.failures, self.next_ms = False, 0, self._now()

    # ---- heartbeats ------------------------------------------------------------------------------

    def _beat(self) -> None:
        applied = self.own_registration() == self.epoch
        body = wire.BrokerHeartbeatRequest(
            broker_id=self.node_id,
            broker_epoch=self.epoch,
            current_metadata_offset=self.observer.state.end_offset - 1,
            want_fence=self.state == STARTING,
            want_shut_down=self.state == LEAVING,
        )
        self._ask(body, lambda answer: self._heard(body, applied, answer), self._failed)

    def _heard(self, asked: wire.BrokerHeartbeatRequest, applied: bool, answer: Any) -> None:
        if answer.error_code:
            if answer.error_code == ErrorCode.STALE_BROKER_EPOCH:
                self.world.marks.add("Kafka's broker told STALE_BROKER_EPOCH")
            self._failed()
            return
        self._judge(asked, applied, answer)
        self.in_flight, self.failures = False, 0
        wait = HEARTBEAT_INTERVAL_MS
        match self.state:
            case "starting":
                wait = STARTING_BEAT_MS
                if answer.is_caught_up:
                    self.state = RECOVERY
            case "recovery":
                wait = STARTING_BEAT_MS
                if not answer.is_fenced:
                    self.state = RUNNING
                    self.world.marks.add("Kafka's broker serves")
            case "running" if answer.is_fenced:
                self.world.marks.add("Kafka's broker serves on while it is fenced")
            case "leaving" if answer.should_shut_down:
                self.clean_epoch = self.epoch
                self.world.marks.add("Kafka's broker stopped in order")
                self.end("stops in order")
                return
        self.next_ms = self._now() + wait

    def _judge(self, asked: wire.BrokerHeartbeatRequest, applied: bool, answer: Any) -> None:
        """What no controller may tell a broker."""
        if answer.is_caught_up and not applied:
            raise SafetyError(f"broker {self.node_id} is caught up, and has not applied its registration")
        if not answer.is_fenced and not applied:
            raise SafetyError(f"broker {self.node_id} serves, and has not applied its registration")
        if not answer.is_fenced and asked.want_fence:
            raise SafetyError(f"broker {self.node_id} serves, and is not ready to")
        if answer.should_shut_down and not asked.want_shut_down:
            raise SafetyError(f"broker {self.node_id} is to stop, and did not ask for it")

    # ---- ISRs ------------------------------------------------------------------------------------

    def _change_an_isr(self) -> None:
        """Of a partition that it leads: without a member, or with all replicas that live."""
        image = self.observer.state.image
        led = [
            (topic_id, index, part)
            for topic_id, index, part in self.world.partitions(image)
            if part.leader == self.node_id and len(part.replicas) > 1
        ]
        if not led:
            return
        topic_id, index, part = self.rng.choice(led)
        others = [each for each in part.replicas if each != self.node_id and each in image.brokers]
        wanted = {self.node_id} | {each for each in others if self.rng.random() < 0.6}
        types = wire.AlterPartitionRequest
        data = types.PartitionData(
            partition_index=index,
            leader_epoch=part.leader_epoch,
            partition_epoch=part.partition_epoch,
            new_isr_with_epochs=tuple(
                types.BrokerState(broker_id=each, broker_epoch=image.brokers[each].epoch)
                for each in sorted(wanted)
            ),
        )
        topic = types.TopicData(topic_id=topic_id, partitions=(data,))
        self._alter(types(broker_id=self.node_id, broker_epoch=self.epoch, topics=(topic,)), part)

    def _alter(self, body: wire.AlterPartitionRequest, part: Any) -> None:
        """Again and again while it fails as a whole, unless another partition epoch has come meanwhile."""
        run = self.run

        def again() -> None:
            topic = body.topics[0]
            index = topic.partitions[0].partition_index
            known = self.observer.state.image.topics.partition(topic.topic_id, index)
            if run == self.run and self.state == RUNNING and known == part:
                self._alter(body, part)

        def then(answer: Any) -> None:
            if answer.error_code:
                self.world.engine.after(ISR_RETRY_MS, again)
                return
            (found,) = answer.topics[0].partitions
            self.world.marks.add(f"Kafka's AlterPartition answered {ErrorCode.of(found.error_code).name}")
            sent = body.topics[0].partitions[0]
            if not found.error_code and (
                set(found.isr) != {each.broker_id for each in sent.new_isr_with_epochs}
                or found.leader_epoch != sent.leader_epoch
                or not sent.partition_epoch <= found.partition_epoch <= sent.partition_epoch + 1
            ):
                raise SafetyError(f"broker {self.node_id} asked for {sent}, and was granted {found}")

        self._ask(body, then, lambda: self.world.engine.after(ISR_RETRY_MS, again))


def _carried(body: Any, version: int) -> Any:
    """The request as its receiver decodes it."""
    api = API_BY_NAME[type(body).__name__.removesuffix("Request")]
    header = codec.RequestHeader(api.key, version, 1)
    return codec.decode_request(b"".join(codec.encode_request(header, body))).body


def _carried_back(body: Any, api: str, version: int) -> Any:
    """The response as its receiver decodes it."""
    key = API_BY_NAME[api].key
    return codec.decode_response(key, version, b"".join(codec.encode_response(key, version, 1, body))).body
