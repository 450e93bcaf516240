"""The recipes of docs/testing.md, each with confluent-kafka and with aiokafka."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import CommitFailedError
from confluent_kafka import Consumer, Producer

from metaquorum.testing import Chaos, Cluster, check_log

WAIT_S = 30.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=2, controllers=1) as made:
        yield made


class Librdkafka:
    """What a recipe does, with confluent-kafka."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def produce(self, topic: str, *values: str, **config: Any) -> list[str]:
        """Returns those that were acknowledged."""
        acknowledged: list[str] = []
        fast = {"retry.backoff.ms": 20, "reconnect.backoff.max.ms": 100}
        producer = Producer({**self.cluster.client_config, **fast, **config})
        for value in values:

            def done(error: Any, _: Any, value: str = value) -> None:
                acknowledged.extend(() if error else (value,))

            producer.produce(topic, value, on_delivery=done)
        producer.flush(WAIT_S)
        return acknowledged

    def consume(self, topic: str, count: int, group: str, each: Callable[[str], None] = str) -> list[str]:
        """As a member of a group until it has so many different messages: calls a function, and commits."""
        config = {"group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False}
        consumer = Consumer({**self.cluster.client_config, "heartbeat.interval.ms": 100, **config})
        consumer.subscribe([topic])
        found: list[str] = []

        def has_all() -> bool:
            message = consumer.poll(0.05)
            if message is not None and message.error() is None:
                value = (message.value() or b"").decode()
                each(value)
                found.append(value)
                consumer.commit(message, asynchronous=True)
            return len(set(found)) >= count

        self.cluster.wait_until(has_all, f"{count} messages")
        consumer.close()
        return found

    def transact(self, topic: str, value: str, between: Callable[[], object]) -> None:
        """A transaction with one message; calls a function before it commits."""
        producer = Producer({**self.cluster.client_config, "transactional.id": topic})
        producer.init_transactions(WAIT_S)
        producer.begin_transaction()
        producer.produce(topic, value)
        producer.flush(WAIT_S)
        between()
        producer.commit_transaction(WAIT_S)


class Aiokafka:
    """The same, with aiokafka."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def produce(self, topic: str, *values: str, **config: Any) -> list[str]:
        idempotent = config.get("enable.idempotence", True)

        async def produce() -> list[str]:
            acknowledged = []
            async with self._producer(enable_idempotence=idempotent) as producer:
                for value in values:
                    await producer.send_and_wait(topic, value.encode())
                    acknowledged.append(value)
            return acknowledged

        return self._run(produce())

    def consume(self, topic: str, count: int, group: str, each: Callable[[str], None] = str) -> list[str]:
        async def consume() -> list[str]:
            consumer = AIOKafkaConsumer(
                topic,
                bootstrap_servers=self.cluster.bootstrap_servers,
                group_id=group,
                auto_offset_reset="earliest",
                enable_auto_commit=False,
                heartbeat_interval_ms=100,
                retry_backoff_ms=50,
            )
            await consumer.start()
            found: list[str] = []
            try:
                while len(set(found)) < count:
                    message = await consumer.getone()
                    value = message.value.decode()
                    await asyncio.to_thread(each, value)
                    found.append(value)
                    place = TopicPartition(message.topic, message.partition)
                    with suppress(CommitFailedError):  # a rebalance came first: it is read again
                        await consumer.commit({place: message.offset + 1})
            finally:
                await consumer.stop()
            return found

        return self._run(consume())

    def transact(self, topic: str, value: str, between: Callable[[], object]) -> None:
        async def transact() -> None:
            async with self._producer(transactional_id=topic) as producer, producer.transaction():
                await producer.send_and_wait(topic, value.encode())
                await asyncio.to_thread(between)

        self._run(transact())

    @asynccontextmanager
    async def _producer(self, **config: Any) -> AsyncIterator[Any]:
        servers = self.cluster.bootstrap_servers
        producer = AIOKafkaProducer(bootstrap_servers=servers, acks="all", retry_backoff_ms=20, **config)
        await producer.start()
        try:
            yield producer
        finally:
            await producer.stop()

    @staticmethod
    def _run(work: Coroutine[Any, Any, Any]) -> Any:
        async def limited() -> Any:
            return await asyncio.wait_for(work, 2 * WAIT_S)

        return asyncio.run(limited())


@pytest.fixture(params=[Librdkafka, Aiokafka])
def client(request: pytest.FixtureRequest, cluster: Cluster) -> Any:
    return request.param(cluster)


def topic_of(client: Any, name: str, **configs: Any) -> str:
    made: str = client.cluster.create_topic(f"{name}-{type(client).__name__}", configs=configs)
    return made


def values_in(client: Any, topic: str) -> list[str]:
    return [(each.value or b"").decode() for each in client.cluster.consume_all(topic)]


def test_retries_make_no_duplicates(client: Any) -> None:
    topic = topic_of(client, "retries")
    with client.cluster.fault("Produce", topic=topic, error="NOT_LEADER_OR_FOLLOWER", times=2) as refused:
        assert client.produce(topic, "a") == ["a"]
    assert refused.hits == 2 and values_in(client, topic) == ["a"]


@pytest.mark.parametrize(("idempotent", "stored"), [(True, 1), (False, 2)])
def test_a_lost_acknowledgement_is_stored_once_by_idempotence(
    client: Any, idempotent: bool, stored: int
) -> None:
    topic = topic_of(client, f"lost-{stored}")
    with client.cluster.fault("Produce", topic=topic, lose_answer=True, times=1):
        assert client.produce(topic, "a", **{"enable.idempotence": idempotent}) == ["a"]
    assert values_in(client, topic) == ["a"] * stored


def test_a_rebalance_during_processing_loses_nothing(client: Any) -> None:
    topic = topic_of(client, "rebalance")
    group = f"g-{topic}"
    client.produce(topic, "a", "b")
    seen: list[str] = []

    def process(value: str) -> None:
        seen.append(value)
        if len(seen) == 1:
            client.cluster.rebalance(group)

    assert sorted(set(client.consume(topic, 2, group, process))) == ["a", "b"]


def test_a_poison_message_is_found_and_passed_over(client: Any) -> None:
    topic = topic_of(client, "poison")
    client.produce(topic, "1", "poison", "3")
    dead: list[str] = []

    def process(value: str) -> None:
        if not value.isdecimal():
            dead.append(value)

    client.consume(topic, 3, f"g-{topic}", process)
    client.cluster.wait_until(lambda: set(client.cluster.lag(f"g-{topic}").values()) == {0})
    assert dead == ["poison"]


def test_a_consumer_behind_retention_goes_on_at_the_start(client: Any) -> None:
    topic = topic_of(client, "behind")
    client.produce(topic, "a", "b")
    assert client.consume(topic, 1, f"g-{topic}")[0] == "a"
    client.cluster.expire_messages(topic)
    client.produce(topic, "c")
    assert client.consume(topic, 1, f"g-{topic}") == ["c"]


def test_a_transaction_survives_its_coordinator(client: Any) -> None:
    topic = topic_of(client, "exactly-once")
    client.transact(topic, "a", lambda: client.cluster.move_coordinator(transaction=topic))
    client.cluster.wait_for_no_transactions()
    assert values_in(client, topic) == ["a"]


def test_a_deleted_topic_is_produced_to_again(client: Any) -> None:
    topic = topic_of(client, "deleted")
    client.produce(topic, "a")
    client.cluster.recreate_topic(topic)
    assert client.produce(topic, "b") == ["b"] and values_in(client, topic) == ["b"]


def test_a_week_of_retention_takes_no_time() -> None:
    with Cluster() as cluster:
        for client in (Librdkafka(cluster), Aiokafka(cluster)):
            topic = topic_of(client, "week", **{"retention.ms": 7 * 86_400_000, "segment.ms": 86_400_000})
            client.produce(topic, "old")
        cluster.clock.advance(days=8)
        cluster.run_retention()
        assert [cluster.consume_all(f"week-{each}") for each in ("Librdkafka", "Aiokafka")] == [[], []]


def test_expired_credentials_are_refused() -> None:
    with Cluster(sasl="scram") as cluster:
        topic = cluster.create_topic("orders")
        cluster.add_user("alice", "old")
        alice = {**cluster.client_config, "sasl.username": "alice", "sasl.password": "old"}
        errors: list[str] = []
        cluster.add_user("alice", "new")
        producer = Producer({**alice, "error_cb": lambda error: errors.append(error.name())})
        producer.produce(topic, "never")
        cluster.wait_until(lambda: (producer.poll(0.05), "_AUTHENTICATION" in errors)[1], "a refusal")
        producer.purge()
        assert asyncio.run(refused_by_aiokafka(cluster, "old")) and not asyncio.run(
            refused_by_aiokafka(cluster, "new")
        )


async def refused_by_aiokafka(cluster: Cluster, password: str) -> bool:
    producer = AIOKafkaProducer(
        bootstrap_servers=cluster.bootstrap_servers,
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="SCRAM-SHA-256",
        sasl_plain_username="alice",
        sasl_plain_password=password,
        request_timeout_ms=10_000,
    )
    try:
        await producer.start()
    except Exception:
        return True
    finally:
        await producer.stop()
    return False


def test_chaos_with_a_seed_loses_nothing() -> None:
    chaos = Chaos(cuts=2, slow_disks=1, lasts_s=(0.1, 0.2))
    with Cluster(brokers=2, controllers=1, seed=5, chaos=chaos) as cluster:
        for client in (Librdkafka(cluster), Aiokafka(cluster)):
            topic = topic_of(client, "chaos")
            sent = [(topic, 0, value) for value in client.produce(topic, *map(str, range(20)))]
            assert len(sent) == 20
            check_log(sent, [(topic, 0, value) for value in values_in(client, topic)])
        cluster.wait_for_chaos()
