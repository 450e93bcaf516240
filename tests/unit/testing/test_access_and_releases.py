"""Clients that log in or use TLS, and clusters that offer what an older release of Kafka offers."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest
from confluent_kafka import Producer

from metaquorum.testing import Cluster, ClusterError
from metaquorum.testing.releases import versions_of


def sent(config: dict[str, Any], topic: str, timeout_ms: int = 20_000) -> list[str | None]:
    """The error of a message, None if it was acknowledged; nothing if there is no answer."""
    found: list[Any] = []
    producer = Producer({**config, "message.timeout.ms": timeout_ms})
    producer.produce(topic, "a", on_delivery=lambda error, _: found.append(error and error.name()))
    producer.flush(20)
    return found


@pytest.mark.parametrize(("sasl", "tls"), [("scram", False), (None, True), ("scram", True)])
def test_clients_log_in_and_use_tls(sasl: str | None, tls: bool) -> None:
    with Cluster(brokers=2, controllers=1, tls=tls, **({"sasl": sasl} if sasl else {})) as cluster:
        topic = cluster.create_topic("orders", 2)
        assert sent(cluster.client_config, topic) == [None]
        assert asyncio.run(by_aiokafka(cluster, topic)) == b"a"
        plain = {"bootstrap.servers": cluster.bootstrap_servers}
        assert sent(plain, topic, timeout_ms=500) == ["_MSG_TIMED_OUT"]
        ca_file = cluster.ca_file
        assert (ca_file is not None) is tls
    assert ca_file is None or not os.path.exists(ca_file)


async def by_aiokafka(cluster: Cluster, topic: str) -> bytes:
    from aiokafka import AIOKafkaConsumer
    from aiokafka.helpers import create_ssl_context

    context = None if cluster.ca_file is None else create_ssl_context(cafile=cluster.ca_file)
    consumer = AIOKafkaConsumer(
        topic,
        bootstrap_servers=cluster.bootstrap_servers,
        auto_offset_reset="earliest",
        security_protocol=cluster.client_config["security.protocol"],
        ssl_context=context,
        sasl_mechanism=cluster.client_config.get("sasl.mechanism", "PLAIN"),
        sasl_plain_username=cluster.user,
        sasl_plain_password=cluster.password,
    )
    await consumer.start()
    try:
        value: bytes = (await consumer.getone()).value
        return value
    finally:
        await consumer.stop()


def test_users_come_and_go_and_are_principals_of_faults() -> None:
    with Cluster(sasl="scram") as cluster:
        topic = cluster.create_topic("orders")
        cluster.add_user("alice", "secret")
        alice = {**cluster.client_config, "sasl.username": "alice", "sasl.password": "secret"}
        with cluster.fault("Produce", client="User:alice", error="TOPIC_AUTHORIZATION_FAILED") as refused:
            assert sent(alice, topic) == ["TOPIC_AUTHORIZATION_FAILED"]
            assert sent(cluster.client_config, topic) == [None]
            assert refused.hits == 1
        cluster.remove_user("alice")
        errors: list[str] = []
        producer = Producer({**alice, "error_cb": lambda error: errors.append(error.name())})
        producer.produce(topic, "never")
        cluster.wait_until(lambda: (producer.poll(0.05), "_AUTHENTICATION" in errors)[1], "a refused login")
        producer.purge()
        assert [event.text for event in cluster.events][-1] == "user alice was removed"


def test_an_older_release_offers_its_apis_and_versions() -> None:
    with Cluster(brokers=2, controllers=1, version="3.6") as cluster:
        topic = cluster.create_topic("orders", configs={"min.insync.replicas": 2})
        seen: list[Any] = []
        with cluster.intercept("Produce", seen.append), cluster.intercept("ApiVersions", seen.append):
            assert sent(cluster.client_config, topic) == [None]
        assert {each.version for each in seen if each.api == "Produce"} == {9}
        assert all(each.version <= 3 for each in seen if each.api == "ApiVersions")
        assert [each.value for each in cluster.consume_all(topic)] == [b"a"]


def test_releases_are_what_their_message_definitions_say() -> None:
    old, new = versions_of("3.6"), versions_of("3.9")
    assert (old["Produce"], old["Fetch"], new["Fetch"], old["AddPartitionsToTxn"]) == (9, 15, 17, 4)
    assert "ConsumerGroupHeartbeat" not in old and new["ConsumerGroupHeartbeat"] == 0
    for release in ("2.8", "3.0", "3.10", "4.0", "3", "three"):
        with pytest.raises(ClusterError, match=r"write a release of Kafka from 3\.1 to 3\.9"):
            Cluster(version=release)


def test_what_cannot_be_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ClusterError, match="sasl='plain': write \"scram\""):
        Cluster(sasl="plain")
    monkeypatch.setattr("metaquorum.testing.access.is_installed", lambda module: False)
    with pytest.raises(ClusterError, match=r"tls=True needs cryptography: pip install 'metaquorum\[oauth\]'"):
        Cluster(tls=True)
