"""Clients that log in or use TLS, and clusters that offer what an older release of Kafka offers."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

import pytest
from confluent_kafka import Producer

from metaquorum.testing import Cluster, ClusterError
from metaquorum.testing.releases import versions_of
from metaquorum.wire.table import API_BY_NAME
from tests.unit.server.test_callers_in_the_log import NOT_OF_BROKERS

LAST_KEY = 87
"""Of the APIs in the message definitions of Kafka 3.9: later ones are newer than every release of Kafka 3."""


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
        assert problem_of(alice, topic, cluster) == "_AUTHENTICATION"
        assert [event.text for event in cluster.events][-1] == "user alice was removed"


def test_certificates_expire_and_are_valid_again() -> None:
    with Cluster(tls=True) as cluster:
        topic = cluster.create_topic("orders")
        nobody = cluster.client_config
        alice, bob = ({**nobody, **cluster.client_certificate(name)} for name in ("alice", "bob"))
        assert cluster.client_certificate("alice").items() <= alice.items()
        seen: list[Any] = []
        with cluster.intercept("Produce", seen.append):
            assert [sent(config, topic) for config in (alice, bob, nobody)] == [[None]] * 3
        assert [each.principal for each in seen] == ["User:CN=alice", "User:CN=bob", "User:ANONYMOUS"]
        with cluster.expire_certificate("alice"):
            assert sent(alice, topic, 500) == ["_MSG_TIMED_OUT"]
            assert [sent(config, topic) for config in (bob, nobody)] == [[None]] * 2
        assert sent(alice, topic) == [None]
        with cluster.expire_certificate() as expired:
            assert problem_of(nobody, topic, cluster) == "_SSL"
        assert sent(nobody, topic) == [None]
        assert [event.text for event in cluster.events][-1] == f"healed: {expired.text}"
        with pytest.raises(ClusterError, match="no certificate of carol: client_certificate makes one"):
            cluster.expire_certificate("carol")


def test_a_client_that_runs_meets_its_expired_certificate_when_it_connects_again() -> None:
    with Cluster(tls=True) as cluster:
        topic = cluster.create_topic("orders")
        config = {**cluster.client_config, **cluster.client_certificate("alice")}
        producer = Producer({**config, "reconnect.backoff.max.ms": 100})
        producer.produce(topic, "a")
        assert producer.flush(20) == 0
        with cluster.expire_certificate("alice"):
            producer.produce(topic, "by the connection that stays")
            assert producer.flush(20) == 0
            assert cluster.drop_connections("User:CN=alice", 0)
            producer.produce(topic, "late")
            assert producer.flush(0.5) == 1
        assert producer.flush(20) == 0


def test_tokens_expire_by_the_clusters_clock() -> None:
    with Cluster(sasl="oauth") as cluster:
        topic = cluster.create_topic("orders")
        tokens = [cluster.token("alice", seconds=600)]
        config = {**cluster.client_config, "oauth_cb": lambda _: (tokens[-1], time.time() + 600)}
        with cluster.observe("Produce", client="User:alice") as seen:
            assert sent(config, topic) == [None] and seen.hits == 1
        cluster.expire_tokens()
        assert problem_of(config, topic, cluster) == "_AUTHENTICATION"
        assert [event.text for event in cluster.events][-1] == "the tokens so far have expired"
        with pytest.raises(ClusterError, match=r"no valid token: token\(\) makes one"):
            cluster.expire_tokens()
        with pytest.raises(ClusterError, match="seconds=0: a token lives for some time"):
            cluster.token(seconds=0)
        tokens.append(cluster.token("alice"))
        assert sent(config, topic) == [None]


def problem_of(config: dict[str, Any], topic: str, cluster: Cluster) -> str:
    """The first error with which a new client cannot connect."""
    errors: list[str] = []
    producer = Producer({**config, "error_cb": lambda error: errors.append(error.name())})
    producer.produce(topic, "never")
    cluster.wait_until(lambda: (producer.poll(0.05), bool(errors))[1], "a refused connection")
    producer.purge()
    return errors[0]


def test_what_a_cluster_lacks_names_the_wish() -> None:
    with Cluster() as cluster:
        for call in (cluster.expire_certificate, lambda: cluster.client_certificate("alice")):
            with pytest.raises(ClusterError, match="no certificates: have one with tls=True"):
                call()
        for change in (lambda: cluster.add_user("alice", "a"), lambda: cluster.remove_user("alice")):
            with pytest.raises(ClusterError, match='no users: have one with sasl="scram"'):
                change()
        with pytest.raises(ClusterError, match='no tokens: have one with sasl="oauth"'):
            cluster.token()


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
    of_kafka_3 = {name for name, api in API_BY_NAME.items() if api.key <= LAST_KEY} - NOT_OF_BROKERS
    missing = of_kafka_3 - new.keys()
    assert not missing, f"testing/releases.py must say which release of Kafka 3 has it: {missing}"
    for release in ("2.8", "3.0", "3.10", "4.0", "3", "three"):
        with pytest.raises(ClusterError, match=r"write a release of Kafka from 3\.1 to 3\.9"):
            Cluster(version=release)


def test_what_cannot_be_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ClusterError, match='sasl=\'plain\': write "scram" or "oauth"'):
        Cluster(sasl="plain")
    monkeypatch.setattr("metaquorum.testing.access.is_installed", lambda module: False)
    with pytest.raises(ClusterError, match=r"tls=True needs cryptography: pip install 'metaquorum\[oauth\]'"):
        Cluster(tls=True)
    with pytest.raises(ClusterError, match=r'sasl="oauth" needs PyJWT: pip install \'metaquorum\[oauth\]\''):
        Cluster(sasl="oauth")
