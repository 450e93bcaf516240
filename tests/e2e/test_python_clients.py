"""aiokafka and kafka-python with every codec, in transactions, as administrators; groups of Python clients;
exact counts through kill -9 of leaders, coordinators and controllers."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import aiokafka
import aiokafka.admin
import aiokafka.errors
import kafka
import kafka.admin
import kafka.errors
import pytest
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from tests.e2e.group_members import Join, Member, goes_through_everything
from tests.e2e.kafka_site import (
    QUICK,
    ROUND,
    KafkaCluster,
    Outcome,
    assert_exact,
    confluent_produce,
    confluent_read,
    create_topics_of_load,
    kafka_site,
    kill_in_turn,
    wait_for_leaders,
)
from tests.e2e.member_program import CLIENTS
from tests.e2e.processes import ENVIRONMENT

pytestmark = pytest.mark.e2e

PATIENCE_S = 90
MESSAGES = 300

Threads = list[threading.Thread]


@pytest.fixture(name="site", scope="module")
def fixture_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    with kafka_site(tmp_path_factory.mktemp("python-clients"), KafkaCluster, 3, QUICK) as site:
        yield site


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
    # With acks=0 a client does not notice that a leader does not know the topic yet.
    wait_for_leaders(site, topic, 1)

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


# ---- kafka-python


def kafka_python_consumer(site: KafkaCluster, **config: Any) -> kafka.KafkaConsumer:
    return kafka.KafkaConsumer(
        bootstrap_servers=site.bootstrap.split(","), auto_offset_reset="earliest", **config
    )


def kafka_python_read(consumer: kafka.KafkaConsumer, count: int) -> list[bytes]:
    """The next `count` records."""
    found: list[bytes] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(found) < count and time.monotonic() < deadline:
        for records in consumer.poll(timeout_ms=200).values():
            found += [record.value for record in records]
    return found


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
def test_kafka_python_writes_and_reads_every_codec(site: KafkaCluster, codec: str | None) -> None:
    topic = f"kp-codec-{codec}"
    site.create_topic(topic, partitions=1)
    servers = site.bootstrap.split(",")
    producer = kafka.KafkaProducer(bootstrap_servers=servers, compression_type=codec, linger_ms=20)
    waiting = [producer.send(topic, value) for value in values("kp")]
    assert [each.get(timeout=PATIENCE_S).offset for each in waiting] == list(range(MESSAGES))
    producer.close()
    # librdkafka's batch after its own: each client reads the other's.
    confluent_produce(site, topic, [b"rd"], **{"compression.type": codec or "none"})
    consumer = kafka_python_consumer(site)
    consumer.assign([kafka.TopicPartition(topic, 0)])
    assert kafka_python_read(consumer, MESSAGES + 1) == [*values("kp"), b"rd"]
    consumer.close()
    assert confluent_read(site, topic, MESSAGES + 1, partitions=1) == [*values("kp"), b"rd"]


def test_kafka_python_writes_without_an_answer(site: KafkaCluster) -> None:
    site.create_topic("kp-acks-0", partitions=1)
    wait_for_leaders(site, "kp-acks-0", 1)
    producer = kafka.KafkaProducer(
        bootstrap_servers=site.bootstrap.split(","), acks=0, enable_idempotence=False
    )
    for value in values("kp"):
        producer.send("kp-acks-0", value)
    producer.close()
    assert confluent_read(site, "kp-acks-0", MESSAGES, partitions=1) == values("kp")


def test_kafka_python_seeks_by_place_and_time(site: KafkaCluster) -> None:
    site.create_topic("kp-times", partitions=1)
    place, began_ms = kafka.TopicPartition("kp-times", 0), int(time.time() * 1000) - 60_000
    producer = kafka.KafkaProducer(bootstrap_servers=site.bootstrap.split(","))
    for number in range(10):
        sent = producer.send("kp-times", b"%d" % number, timestamp_ms=began_ms + 1_000 * number)
        sent.get(timeout=PATIENCE_S)
    producer.close()
    consumer = kafka_python_consumer(site)
    consumer.assign([place])
    assert (consumer.beginning_offsets([place]), consumer.end_offsets([place])) == ({place: 0}, {place: 10})
    for later_ms, offset in ((-1, 0), (0, 0), (3_000, 3), (3_001, 4)):
        assert consumer.offsets_for_times({place: began_ms + later_ms})[place].offset == offset
    assert consumer.offsets_for_times({place: began_ms + 9_001})[place] is None
    consumer.seek(place, 7)
    assert kafka_python_read(consumer, 3) == [b"7", b"8", b"9"]
    consumer.close()


def test_kafka_python_reads_what_is_committed(site: KafkaCluster) -> None:
    site.create_topic("kp-tx", partitions=1)
    place = kafka.TopicPartition("kp-tx", 0)
    producer = kafka.KafkaProducer(bootstrap_servers=site.bootstrap.split(","), transactional_id="kp-tx")
    producer.init_transactions()
    for value in (b"first", b"aborted", b"second"):
        producer.begin_transaction()
        producer.send("kp-tx", value).get(timeout=PATIENCE_S)
        if value == b"aborted":
            producer.abort_transaction()
        else:
            offsets = {place: kafka.OffsetAndMetadata(10, "", -1)}
            producer.send_offsets_to_transaction(offsets, "kp-tx-group")
            producer.commit_transaction()
    producer.close()
    for isolation, wanted in (
        ("read_committed", [b"first", b"second"]),
        ("read_uncommitted", [b"first", b"aborted", b"second"]),
    ):
        consumer = kafka_python_consumer(site, isolation_level=isolation, group_id="kp-tx-group")
        consumer.assign([place])
        assert consumer.committed(place) == 10
        consumer.seek(place, 0)
        assert kafka_python_read(consumer, len(wanted)) == wanted
        consumer.close(autocommit=False)


# ---- all of them


def test_their_groups(site: KafkaCluster, tmp_path: Path) -> None:
    def joins(client: str) -> Join:
        words = [sys.executable, "-m", "tests.e2e.member_program", client, site.bootstrap]
        return lambda topic, output: Member([*words, topic], output, ENVIRONMENT)

    goes_through_everything(site, tmp_path, {client: joins(client) for client in CLIENTS})


def kafka_python_load(site: KafkaCluster, ending: threading.Event, outcome: Outcome) -> Threads:
    """No transactions: kafka-python 3.0.12 drops a request to a coordinator that refuses connections, but
    waits for the response forever."""
    servers = site.bootstrap.split(",")

    def acknowledged(_: Any) -> None:
        outcome.written += 1

    def write() -> None:
        producer = kafka.KafkaProducer(bootstrap_servers=servers, compression_type="gzip", linger_ms=1)
        for number in itertools.count():
            if ending.wait(0.003):
                break
            producer.send("kp-written", b"%d" % number).add_callback(acknowledged)
        producer.flush(PATIENCE_S)
        producer.close()

    def create() -> None:
        # An administration client retries nothing, and asks the broker that was the controller when it began.
        while not ending.is_set():
            with contextlib.suppress(kafka.errors.KafkaError):
                admin = kafka.admin.KafkaAdminClient(bootstrap_servers=servers)
                try:
                    create_until_it_fails(admin)
                finally:
                    admin.close()

    def create_until_it_fails(admin: kafka.admin.KafkaAdminClient) -> None:
        while not ending.wait(0.2):
            topic = f"kp-topic-{len(outcome.topics)}"
            with contextlib.suppress(kafka.errors.TopicAlreadyExistsError):
                admin.create_topics([kafka.admin.NewTopic(topic, 1, 3)])
            outcome.topics.append(topic)

    return [threading.Thread(target=each, daemon=True) for each in (write, create)]


def aiokafka_load(site: KafkaCluster, ending: threading.Event, outcome: Outcome) -> Threads:
    def acknowledged(_: Any) -> None:
        outcome.written += 1

    async def write() -> None:
        async with producing(site, enable_idempotence=True, request_timeout_ms=10_000) as producer:
            for number in itertools.count():
                if ending.is_set():
                    break
                sent = await producer.send("aio-written", b"%d" % number)
                sent.add_done_callback(acknowledged)
                await asyncio.sleep(0.003)
            await producer.flush()

    async def transact() -> None:
        async with producing(site, transactional_id="aio") as producer:
            for number in itertools.count():
                if ending.is_set():
                    break
                await producer.begin_transaction()
                for index in range(ROUND):
                    await producer.send("aio-transactions", b"%d" % number, partition=index)
                await producer.flush()
                if number % 3 == 2:
                    await producer.abort_transaction()
                else:
                    await producer.commit_transaction()
                    outcome.committed.append(number)
                await asyncio.sleep(0.02)

    async def create() -> None:
        admin = aiokafka.admin.AIOKafkaAdminClient(bootstrap_servers=site.bootstrap)
        await admin.start()
        while not ending.is_set():
            topic = f"aio-topic-{len(outcome.topics)}"
            await asyncio.sleep(0.2)
            try:
                await admin.create_topics([aiokafka.admin.NewTopic(topic, 1, 3)])
            except aiokafka.errors.KafkaError:  # its administration client retries nothing
                continue
            outcome.topics.append(topic)
        await admin.close()

    async def scenario() -> None:
        await asyncio.gather(write(), transact(), create())

    return [threading.Thread(target=asyncio.run, args=(scenario(),), daemon=True)]


def test_they_lose_and_repeat_nothing_when_nodes_are_killed(site: KafkaCluster) -> None:
    ending = threading.Event()
    python, aio = Outcome(), Outcome()
    for prefix in ("kp", "aio"):
        create_topics_of_load(site, prefix)
    threads = kafka_python_load(site, ending, python) + aiokafka_load(site, ending, aio)
    for thread in threads:
        thread.start()
    try:
        kill_in_turn(site, "kp-written", lambda: [python.written, len(python.topics), *aio.counts()])
    finally:
        ending.set()
        for thread in threads:
            thread.join(PATIENCE_S)
    assert_exact(site, "kp", python)
    assert_exact(site, "aio", aio)
