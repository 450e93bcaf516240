"""aiokafka with every codec, in transactions, and as an administrator; aiokafka and kafka-python through
kill -9 of a leader, with exact counts."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import aiokafka
import aiokafka.admin
import aiokafka.errors
import kafka
import pytest
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from tests.e2e.cluster import FAST_BROKERS, Cluster
from tests.e2e.test_kafka_clients import KafkaCluster, confluent_read

pytestmark = pytest.mark.e2e

PATIENCE_S = 90
MESSAGES = 300


@pytest.fixture(name="site", scope="module")
def fixture_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    folder: Path = tmp_path_factory.mktemp("python-clients")
    with Cluster(folder, controllers=1, brokers=3, properties=FAST_BROKERS) as cluster:
        site = KafkaCluster(cluster)
        cluster.start()
        yield site
        cluster.assert_no_bugs()


def run(scenario: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await scenario

    asyncio.run(bounded())


def values(tag: str) -> list[bytes]:
    return [f"{tag} {number} ".encode() * 5 for number in range(MESSAGES)]


@contextlib.asynccontextmanager
async def producing(site: KafkaCluster, **config: Any) -> AsyncIterator[aiokafka.AIOKafkaProducer]:
    producer = aiokafka.AIOKafkaProducer(bootstrap_servers=site.bootstrap, **config)
    await producer.start()
    try:
        yield producer
    finally:
        await producer.stop()


@contextlib.asynccontextmanager
async def consuming(site: KafkaCluster, **config: Any) -> AsyncIterator[aiokafka.AIOKafkaConsumer]:
    consumer = aiokafka.AIOKafkaConsumer(
        bootstrap_servers=site.bootstrap, auto_offset_reset="earliest", **config
    )
    await consumer.start()
    try:
        yield consumer
    finally:
        await consumer.stop()


async def read(consumer: aiokafka.AIOKafkaConsumer, count: int) -> list[bytes]:
    """The next `count` records."""
    found: list[bytes] = []
    while len(found) < count:
        for records in (await consumer.getmany(timeout_ms=200)).values():
            found += [record.value for record in records]
    return found


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    while True:
        if await holds():
            return
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
def test_aiokafka_writes_and_reads_every_codec(site: KafkaCluster, codec: str | None) -> None:
    topic = f"aio-{codec}"
    site.create_topic(topic, partitions=1)

    async def scenario() -> None:
        async with producing(site, compression_type=codec, enable_idempotence=True, linger_ms=20) as producer:
            waiting = [await producer.send(topic, value) for value in values("aio")]
            assert [(await each).offset for each in waiting] == list(range(MESSAGES))
        async with consuming(site) as consumer:
            consumer.assign([aiokafka.TopicPartition(topic, 0)])
            assert await read(consumer, MESSAGES) == values("aio")

    run(scenario())


@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_aiokafka_writes_with_every_acks(site: KafkaCluster, acks: Any) -> None:
    topic = f"aio-acks-{acks}"
    site.create_topic(topic, partitions=1)

    async def scenario() -> None:
        async with producing(site, acks=acks) as producer:
            for value in values("acks"):
                await producer.send(topic, value)
            await producer.flush()
        async with consuming(site) as consumer:
            consumer.assign([aiokafka.TopicPartition(topic, 0)])
            assert await read(consumer, MESSAGES) == values("acks")

    run(scenario())


def test_aiokafka_seeks_by_place_and_time(site: KafkaCluster) -> None:
    site.create_topic("aio-times", partitions=1)
    place, began_ms = aiokafka.TopicPartition("aio-times", 0), int(time.time() * 1000) - 60_000

    async def scenario() -> None:
        async with producing(site, acks="all") as producer:
            for number in range(10):
                await producer.send_and_wait(
                    "aio-times", b"%d" % number, timestamp_ms=began_ms + 1_000 * number
                )
        async with consuming(site) as consumer:
            consumer.assign([place])
            assert await consumer.beginning_offsets([place]) == {place: 0}
            assert await consumer.end_offsets([place]) == {place: 10}
            for later_ms, offset in ((-1, 0), (0, 0), (3_000, 3), (3_001, 4)):
                found = await consumer.offsets_for_times({place: began_ms + later_ms})
                assert found[place].offset == offset
            assert (await consumer.offsets_for_times({place: began_ms + 9_001}))[place] is None
            consumer.seek(place, 7)
            assert await read(consumer, 3) == [b"7", b"8", b"9"]

    run(scenario())


def test_aiokafka_commits_aborts_and_sends_offsets(site: KafkaCluster) -> None:
    site.create_topic("aio-tx", partitions=1)
    place = aiokafka.TopicPartition("aio-tx", 0)

    async def scenario() -> None:
        async with producing(site, transactional_id="aio-tx") as producer:
            async with producer.transaction():
                await producer.send("aio-tx", b"first")
            with pytest.raises(RuntimeError, match="give up"):
                async with producer.transaction():
                    await producer.send_and_wait("aio-tx", b"aborted")
                    raise RuntimeError("give up")
            async with producer.transaction():
                await producer.send("aio-tx", b"second")
                await producer.send_offsets_to_transaction({place: 10}, "aio-tx-group")
            async with producing(site, transactional_id="aio-tx") as other:
                async with other.transaction():
                    await other.send("aio-tx", b"third")
                with pytest.raises(aiokafka.errors.ProducerFenced):
                    async with producer.transaction():
                        await producer.send_and_wait("aio-tx", b"fenced")
        async with consuming(site, isolation_level="read_committed") as consumer:
            consumer.assign([place])
            assert await read(consumer, 3) == [b"first", b"second", b"third"]
        async with consuming(site, group_id="aio-tx-group") as consumer:
            assert await consumer.committed(place) == 10

    run(scenario())


def test_aiokafka_administers(site: KafkaCluster) -> None:
    async def scenario() -> None:
        admin = aiokafka.admin.AIOKafkaAdminClient(bootstrap_servers=site.bootstrap)

        async def partitions_are(count: int) -> bool:
            (topic,) = await admin.describe_topics(["aio-admin"])
            return not topic["error_code"] and len(topic["partitions"]) == count

        async def is_gone() -> bool:
            return "aio-admin" not in await admin.list_topics()

        await admin.start()
        try:
            await admin.create_topics([aiokafka.admin.NewTopic("aio-admin", 2, 3)])
            await until(lambda: partitions_are(2))
            await admin.create_partitions({"aio-admin": aiokafka.admin.NewPartitions(4)})
            await until(lambda: partitions_are(4))
            (answer,) = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, "aio-admin")])
            assert {"cleanup.policy", "retention.ms"} <= {each[0] for each in answer.resources[0][4]}
            await admin.delete_topics(["aio-admin"])
            await until(is_gone)
        finally:
            await admin.close()

    run(scenario())


def killed_soon(site: KafkaCluster, topic: str) -> tuple[threading.Timer, Any]:
    victim = site.leader(topic)
    killer = threading.Timer(0.3, victim.kill)
    killer.start()
    return killer, victim


def back_again(site: KafkaCluster, killer: threading.Timer, victim: Any) -> None:
    killer.join()
    victim.start()
    victim.wait_for_line("listens on", timeout_s=60)
    site.cluster.wait_brokers({node.node_id: "running" for node in site.cluster.brokers})


def test_aiokafka_loses_nothing_when_its_leader_is_killed(site: KafkaCluster) -> None:
    site.create_topic("aio-killed", partitions=1)
    killer, victim = killed_soon(site, "aio-killed")

    async def scenario() -> None:
        async with (
            consuming(site, group_id="aio-killed") as consumer,
            producing(site, enable_idempotence=True, request_timeout_ms=10_000) as producer,
        ):
            consumer.subscribe(["aio-killed"])
            waiting = []
            for value in values("killed"):
                waiting.append(await producer.send("aio-killed", value))
                await asyncio.sleep(0.003)
            assert [(await each).offset for each in waiting] == list(range(MESSAGES))
            assert await read(consumer, MESSAGES) == values("killed")

    run(scenario())
    back_again(site, killer, victim)


def test_kafka_python_loses_nothing_when_its_leader_is_killed(site: KafkaCluster) -> None:
    site.create_topic("kp-killed", partitions=1)
    producer = kafka.KafkaProducer(
        bootstrap_servers=site.bootstrap.split(","), compression_type="gzip", linger_ms=1
    )
    killer, victim = killed_soon(site, "kp-killed")
    waiting = []
    for value in values("kp"):
        waiting.append(producer.send("kp-killed", value))
        time.sleep(0.003)
    assert [each.get(timeout=PATIENCE_S).offset for each in waiting] == list(range(MESSAGES))
    producer.close()
    assert confluent_read(site, "kp-killed", MESSAGES, partitions=1) == values("kp")
    back_again(site, killer, victim)
