"""A broker of ours at a controller's Kafka listener, where that answers as ours do, and where it says no more
than Apache Kafka 3.7's."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from metaquorum.clients.kafka.cluster import Coordinator, KafkaClient
from metaquorum.clients.kafka.quorum import OFFERED
from metaquorum.controller.server import kafka
from metaquorum.listeners.forwarded import nodes, table
from metaquorum.metadata.errors import ErrorCode
from metaquorum.wire import messages as wire
from tests.broker_calls import batch, calls_to
from tests.unit.server.nodes import Site, free_port, new_site, running_broker, running_controller
from tests.unit.server.test_servers import SERVING, health_is
from tests.waiting import within

CONTROLLERS_SESSION_MS, BROKERS_SESSION_MS = 6_000, 7_000
SMALL = {
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "broker.heartbeat.interval.ms": "300",
    "broker.session.timeout.ms": str(BROKERS_SESSION_MS),
}


@pytest.fixture(name="site")
def fixture_site(tmp_path: Path) -> Site:
    return new_site(tmp_path)


def files(site: Site, kafka_port: int) -> tuple[Path, Path]:
    """The controller's, with a Kafka listener, and that of a broker that asks there."""
    names = {"controller.listener.names": "GRPC_CONTROLLER,KAFKA"}
    controller = {
        "listeners": f"GRPC_CONTROLLER://127.0.0.1:{site.controller_port},KAFKA://127.0.0.1:{kafka_port}",
        "broker.session.timeout.ms": str(CONTROLLERS_SESSION_MS),
    }
    broker = {
        "controller.quorum.protocol": "kafka",
        "controller.quorum.voters": f"1@127.0.0.1:{kafka_port}",
    }
    return site.controller_file(controller | names), site.broker_file(broker | names | SMALL)


def as_kafka_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Controllers say what those of Apache Kafka 3.7 say, in its versions."""
    monkeypatch.setattr(nodes, "answer_tags", lambda request, answer: ())
    monkeypatch.setattr(kafka, "offset_tags", lambda request, offset: ())
    older = replace(table.ANSWERED["BrokerRegistration"], max_version=3)
    monkeypatch.setitem(table.ANSWERED, "BrokerRegistration", older)
    monkeypatch.setitem(OFFERED, "Fetch", (12, 16))
    monkeypatch.setitem(OFFERED, "FetchSnapshot", (0, 0))


@pytest.mark.parametrize("answers_as_kafka", [False, True], ids=["ours", "kafkas"])
async def test_a_broker_serves_its_clients(
    site: Site, monkeypatch: pytest.MonkeyPatch, answers_as_kafka: bool
) -> None:
    if answers_as_kafka:
        as_kafka_answers(monkeypatch)
    controller, broker = files(site, free_port())
    async with running_controller(controller), running_broker(broker) as process:
        await health_is(site.broker_port, SERVING)

        def lease_ms() -> int:
            return process.node.status(now_ms=process.clock.monotonic_ms()).lease_left_ms or 0

        if answers_as_kafka:  # after a heartbeat, by the broker's own file
            async with within("a lease that is longer than the controller's session"):
                while not CONTROLLERS_SESSION_MS < lease_ms() <= BROKERS_SESSION_MS:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
        else:
            assert 0 < lease_ms() <= CONTROLLERS_SESSION_MS
        await serves(site)
        assert [each.fenced for _, each in process.roles[0].image().brokers.items()] == [False]


async def serves(site: Site) -> None:
    """Topics, records, producer ids, and a group whose topic the broker has created itself."""
    kinds = wire.CreateTopicsRequest
    topic = kinds.CreatableTopic(name="orders", num_partitions=1, replication_factor=1)
    async with KafkaClient(f"127.0.0.1:{site.kafka_port}") as client, calls_to(site.kafka_port) as calls:
        made = await client.ask(kinds(topics=(topic,), timeout_ms=10_000))
        assert [each.error_code for each in made.topics] == [0]
        again = await client.ask(kinds(topics=(topic,), timeout_ms=10_000))
        assert [each.error_code for each in again.topics] == [ErrorCode.TOPIC_ALREADY_EXISTS]
        async with within("the topic's leader"):
            while (await calls.produce("orders", batch([b"one"]))).error_code:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        async with within("a producer id"):
            while (await calls.init_producer_id()).error_code:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        heartbeat = wire.HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
        answer = await client.ask(heartbeat, target=Coordinator(0, "g"))
        assert answer.error_code == ErrorCode.UNKNOWN_MEMBER_ID
