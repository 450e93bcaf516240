"""The protocol's own troubles, as clients meet them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer

from metaquorum.testing import Cluster, ClusterError
from tests.unit.testing.test_cluster import consumed, produced
from tests.unit.testing.test_what_failed_tests_show import transactional


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    properties = {
        "group.consumer.heartbeat.interval.ms": 500,
        "group.consumer.min.heartbeat.interval.ms": 500,
    }
    with Cluster(brokers=2, controllers=1, properties=properties) as made:
        yield made


class Member:
    """A consumer that counts what it is assigned and what is revoked."""

    def __init__(self, cluster: Cluster, group: str, topic: str, **config: Any) -> None:
        self.assigned = self.lost = 0
        common = {"bootstrap.servers": cluster.bootstrap_servers, "group.id": group}
        self.consumer = Consumer({**common, **config})
        self.consumer.subscribe([topic], on_assign=self._assigned, on_lost=self._lost, on_revoke=self._lost)

    def _assigned(self, consumer: Any, partitions: list[Any]) -> None:
        self.assigned += 1

    def _lost(self, consumer: Any, partitions: list[Any]) -> None:
        self.lost += 1

    def poll_until(self, cluster: Cluster, assigned: int) -> None:
        cluster.wait_until(lambda: (self.consumer.poll(0.05), self.assigned >= assigned)[1], "an assignment")


def test_a_fenced_producer_cannot_commit_and_its_transaction_is_aborted(cluster: Cluster) -> None:
    topic = cluster.create_topic("fenced")
    producer = transactional(cluster, "fenced-tx")
    producer.begin_transaction()
    producer.produce(topic, "never seen")
    producer.flush(20)
    cluster.fence_producer("fenced-tx")
    with pytest.raises(KafkaException, match=r"_FENCED|fenced|INVALID_PRODUCER_EPOCH"):
        producer.commit_transaction(20)
    assert [each.transaction for each in cluster.messages(topic)] == ["aborted"]


def test_an_expired_transaction_is_aborted(cluster: Cluster) -> None:
    topic = cluster.create_topic("expired")
    config = {"transactional.id": "expired-tx", "transaction.timeout.ms": 5000}
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, **config})
    producer.init_transactions(20)
    with pytest.raises(ClusterError, match="expired-tx is not ongoing"):
        cluster.expire_transaction("expired-tx")
    producer.begin_transaction()
    producer.produce(topic, "late")
    producer.flush(20)
    cluster.expire_transaction("expired-tx")
    assert [each.transaction for each in cluster.messages(topic)] == ["aborted"]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_member_whose_session_expired_joins_again(cluster: Cluster, protocol: str) -> None:
    topic, group = cluster.create_topic(f"sessions-{protocol}"), f"g-{protocol}"
    classic = {"heartbeat.interval.ms": 100} if protocol == "classic" else {}
    member = Member(cluster, group, topic, **{"group.protocol": protocol, **classic})
    member.poll_until(cluster, 1)
    cluster.wait_for_group(group, members=1)
    cluster.expire_session(group)
    member.poll_until(cluster, 2)
    assert member.lost >= 1
    member.consumer.close()
    with pytest.raises(ClusterError, match="has no member nobody: wait_for_group waits"):
        cluster.expire_session(group, "nobody")


def test_a_group_rebalances_when_it_is_asked(cluster: Cluster) -> None:
    topic = cluster.create_topic("rebalanced", 2)
    member = Member(cluster, "rebalanced", topic, **{"heartbeat.interval.ms": 100})
    member.poll_until(cluster, 1)
    cluster.wait_for_group("rebalanced", members=1)
    cluster.rebalance("rebalanced")
    member.poll_until(cluster, 2)
    member.consumer.close()
    with pytest.raises(ClusterError, match="group rebalanced has no members"):
        cluster.rebalance("rebalanced")


def test_leaders_and_coordinators_move_and_clients_follow(cluster: Cluster) -> None:
    topic = cluster.create_topic("moved", configs={"min.insync.replicas": 1})
    produced(cluster.bootstrap_servers, topic, ["a"])
    before = cluster.leader(topic, 0)
    after = cluster.move_leader(topic)
    assert cluster.leader(topic, 0) == after != before
    assert cluster.move_leader(topic, to=before) == before
    assert consumed(cluster.bootstrap_servers, topic, 1) == ["a"]
    first = cluster.coordinator(group="g")
    assert cluster.move_coordinator(group="g") != first
    cluster.wait_until(lambda: cluster.coordinator(group="g") != first)
    assert produced(cluster.bootstrap_servers, topic, ["b"]) == [1]
    producer = transactional(cluster, "moved-tx")
    producer.begin_transaction()
    producer.produce(topic, "c")
    cluster.move_coordinator(transaction="moved-tx")
    producer.commit_transaction(30)
    cluster.wait_for_no_transactions()
    assert [each.value for each in cluster.consume_all(topic)] == [b"a", b"b", b"c"]
    with pytest.raises(ClusterError, match="no other replica of moved-0 can lead: in sync are"):
        cluster.move_leader(topic, to=7)


def test_an_unclean_election_loses_acknowledged_messages() -> None:
    with Cluster(brokers=2, controllers=1) as cluster:
        topic = cluster.create_topic("unclean", configs={"min.insync.replicas": 1})
        produced(cluster.bootstrap_servers, topic, ["kept"])
        with cluster.unclean_election(topic):
            assert produced(cluster.bootstrap_servers, topic, ["lost"]) == [1]
        assert [each.value for each in cluster.consume_all(topic)] == [b"kept"]
        assert produced(cluster.bootstrap_servers, topic, ["instead"]) == [1]
    with Cluster() as cluster:
        topic = cluster.create_topic("alone")
        with pytest.raises(ClusterError, match="needs two replicas on brokers that are no controllers"):
            cluster.unclean_election(topic)


def test_offsets_are_out_of_range_after_retention(cluster: Cluster) -> None:
    topic = cluster.create_topic("retained")
    produced(cluster.bootstrap_servers, topic, ["a", "b"])
    assert cluster.expire_messages(topic) == 2
    produced(cluster.bootstrap_servers, topic, ["c"])
    assert consumed(cluster.bootstrap_servers, topic, 1) == ["c"]


def test_a_topic_is_deleted_and_created(cluster: Cluster) -> None:
    topic = cluster.create_topic("recreated", 3)
    produced(cluster.bootstrap_servers, topic, ["a"])
    assert cluster.recreate_topic(topic) == topic
    assert cluster.consume_all(topic) == []
    assert produced(cluster.bootstrap_servers, topic, ["b"]) == [0]
    with pytest.raises(ClusterError, match="there is no topic none"):
        cluster.recreate_topic("none")


def test_a_client_is_throttled_by_its_quota(cluster: Cluster) -> None:
    topic = cluster.create_topic("throttled")
    throttled: list[int] = []
    config = {"client.id": "greedy", "throttle_cb": lambda event: throttled.append(event.throttle_time)}
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, **config})
    with cluster.throttle("greedy", produce_bytes_s=1000):
        for _ in range(5):
            producer.produce(topic, "x" * 2000)
            producer.poll(0)
        cluster.wait_until(lambda: (producer.poll(0.05), bool(throttled))[1], "a throttled answer")
    producer.purge()
    with pytest.raises(ClusterError, match="above 0"):
        cluster.throttle("greedy")


def test_a_client_without_rights_is_refused_at_one_topic(cluster: Cluster) -> None:
    topic = cluster.create_topic("secret")
    other = cluster.create_topic("public")
    errors: list[Any] = []
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "client.id": "stranger"})
    with cluster.refuse("stranger", topic):
        for name in (topic, other):
            producer.produce(name, "a", on_delivery=lambda error, _: errors.append(error and error.name()))
        producer.flush(20)
        assert sorted(errors, key=str) == [None, "TOPIC_AUTHORIZATION_FAILED"]
    assert produced(cluster.bootstrap_servers, topic, ["b"]) == [0]
    with pytest.raises(ClusterError, match="Heartbeat has no topic to refuse"):
        cluster.refuse("stranger", topic, apis=["Heartbeat"])


@pytest.mark.parametrize(
    ("api", "error", "times"),
    [
        ("ListOffsets", "NOT_LEADER_OR_FOLLOWER", 5),
        ("Fetch", "NOT_LEADER_OR_FOLLOWER", 2),
        ("Fetch", "OFFSET_OUT_OF_RANGE", 1),
    ],
)
def test_messages_are_read_again_if_the_leader_moves_or_the_log_is_cut_meanwhile(
    cluster: Cluster, api: str, error: str, times: int
) -> None:
    topic = cluster.create_topic(f"read-again-{api}-{error.lower()}")
    produced(cluster.bootstrap_servers, topic, ["a"])
    with cluster.fault(api, topic=topic, error=error, times=times) as fault:
        assert [each.value for each in cluster.messages(topic)] == [b"a"]
        assert fault.hits == times


def test_messages_that_may_not_be_read_are_one_line(cluster: Cluster) -> None:
    topic = cluster.create_topic("refused")
    produced(cluster.bootstrap_servers, topic, ["a"])
    with (
        cluster.fault("Fetch", topic=topic, error="TOPIC_AUTHORIZATION_FAILED"),
        pytest.raises(ClusterError, match="refused-0 cannot be read from offset 0: TOPIC_AUTHO"),
    ):
        cluster.messages(topic)
