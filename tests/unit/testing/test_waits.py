"""What tests wait for without sleeping, and what they read without a client."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from metaquorum.testing import Cluster, ClusterError, ClusterTimeoutError
from tests.unit.testing.test_cluster import produced


def test_groups_replicas_and_coordinators_are_waited_for() -> None:
    with Cluster(brokers=2, controllers=1) as cluster:
        topic = cluster.create_topic("orders", 2, configs={"min.insync.replicas": 1})
        produced(cluster.bootstrap_servers, topic, ["a", "b", "c"])
        config: dict[str, Any] = {"bootstrap.servers": cluster.bootstrap_servers, "group.id": "g"}
        consumer = Consumer({**config, "auto.offset.reset": "earliest", "enable.auto.commit": False})
        consumer.subscribe([topic])
        assert consumer.poll(20).value() == b"a"
        cluster.wait_for_group("g", members=1)
        consumer.commit(asynchronous=False)
        assert cluster.lag("g") == {(topic, 0): 2}
        consumer.close()
        cluster.wait_for_group("g", state="Empty", members=0)
        assert cluster.coordinator(group="g") in cluster.brokers
        producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "transactional.id": "tx"})
        producer.init_transactions(20)
        assert cluster.coordinator(transaction="tx") in cluster.brokers
        cluster.wait_for_full_isr(topic)
        first = cluster.leader(topic, 0)
        with cluster.kill(first):
            cluster.clock.advance(seconds=8)
            assert len(produced(cluster.bootstrap_servers, topic, ["d"])) == 1
        cluster.wait_for_full_isr(topic)


def test_a_group_begins_at_the_offset_that_was_committed_for_it() -> None:
    with Cluster() as cluster:
        topic = cluster.create_topic("orders", 2)
        produced(cluster.bootstrap_servers, topic, ["a", "b", "c"])
        with pytest.raises(ClusterError, match="not committed: UNKNOWN_TOPIC_OR_PARTITION: topic none"):
            cluster.commit_offsets("g", "none")
        cluster.commit_offsets("g", topic, 1)
        assert cluster.lag("g") == {(topic, 0): 2, (topic, 1): -1}
        cluster.commit_offsets("g", topic)
        assert cluster.lag("g") == {(topic, 0): 3, (topic, 1): 0}
        config: dict[str, Any] = {"bootstrap.servers": cluster.bootstrap_servers, "group.id": "g"}
        consumer = Consumer({**config, "auto.offset.reset": "error"})
        consumer.subscribe([topic])
        assert [message.value() for message in consumer.consume(3, 20)] == [b"a", b"b", b"c"]
        with pytest.raises(ClusterError, match="group g has members, which commit offsets: close them"):
            cluster.commit_offsets("g", topic)
        consumer.close()


def test_a_topic_of_a_client_is_waited_for_until_it_is_there_and_gone() -> None:
    with Cluster(brokers=2, controllers=1, timeout_s=20) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        admin.create_topics([NewTopic("by-a-client", 1, 2)])
        cluster.wait_for_topic("by-a-client")
        assert cluster.leader("by-a-client", 0) in cluster.brokers
        admin.delete_topics(["by-a-client"])
        cluster.wait_for_topic("by-a-client", exists=False)
        with pytest.raises(ClusterError, match="no partition by-a-client-0"):
            cluster.leader("by-a-client", 0)


def test_a_wait_that_fails_says_for_what_and_what_the_nodes_do() -> None:
    with Cluster(timeout_s=20) as cluster:
        cluster.timeout_s = 0.05
        text = r"waited 0\.05 s for rain; combined-0 serves"
        with pytest.raises(ClusterTimeoutError, match=text):
            cluster.wait_until(lambda: False, "rain")
        with pytest.raises(ClusterTimeoutError, match="group g to be Stable with 2 members"):
            cluster.wait_for_group("g", members=2)
        for how in ({}, {"group": "g", "transaction": "t"}):
            with pytest.raises(ClusterError, match="either group= or transaction="):
                cluster.coordinator(**how)
        cluster.timeout_s = 20  # its end may take longer
