"""Faults of single requests: the code is where a broker puts it, and the rest is carried out."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic
from msgspec.structs import replace

from metaquorum.metadata.errors import ErrorCode
from metaquorum.testing import Cluster, ClusterError, ClusterTimeoutError
from metaquorum.testing.interception import Intercepted
from metaquorum.wire.messages import InitProducerIdResponse
from tests.unit.testing.test_cluster import consumed, produced


def delivered(cluster: Cluster, messages: list[tuple[str, int, str]], **config: Any) -> list[str | None]:
    """The name of each message's error, None if it was acknowledged, in the order of `messages`."""
    found: dict[str, str | None] = {}
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "linger.ms": 200, **config})
    for topic, partition, value in messages:

        def done(error: Any, _: Any, value: str = value) -> None:
            found[value] = None if error is None else error.name()

        producer.produce(topic, value, partition=partition, on_delivery=done)
    producer.flush(20)
    return [found.get(value) for _, _, value in messages]


def end_of(cluster: Cluster, topic: str, partition: int) -> int:
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": "g"})
    _, end = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=20)
    consumer.close()
    return int(end)


@pytest.fixture(scope="module")
def cluster() -> Any:
    with Cluster() as made:
        yield made


def test_one_partition_gets_the_code_and_the_rest_is_stored(cluster: Cluster) -> None:
    topic = cluster.create_topic("one-partition", 2)
    with cluster.fault("Produce", topic=topic, partition=0, error="TOPIC_AUTHORIZATION_FAILED") as fault:
        errors = delivered(cluster, [(topic, 0, "a"), (topic, 1, "b")])
        assert errors == ["TOPIC_AUTHORIZATION_FAILED", None]
        assert fault.hits >= 1
    assert (end_of(cluster, topic, 0), end_of(cluster, topic, 1)) == (0, 1)
    assert delivered(cluster, [(topic, 0, "c")]) == [None]


def test_a_client_tries_again_as_often_as_it_is_refused(cluster: Cluster) -> None:
    topic = cluster.create_topic("retries")
    with cluster.fault("Produce", topic=topic, error="NOT_LEADER_OR_FOLLOWER", times=3) as fault:
        assert delivered(cluster, [(topic, 0, "a")], **{"retry.backoff.ms": 10}) == [None]
        assert fault.hits == 3
    assert end_of(cluster, topic, 0) == 1


def test_a_produce_that_timed_out_was_stored(cluster: Cluster) -> None:
    topic = cluster.create_topic("after-the-work")
    with cluster.fault("Produce", topic=topic, error="REQUEST_TIMED_OUT", times=1):
        assert delivered(cluster, [(topic, 0, "a")], retries=0) == ["REQUEST_TIMED_OUT"]
    assert end_of(cluster, topic, 0) == 1


@pytest.mark.parametrize(("idempotent", "stored"), [(True, 1), (False, 2)])
def test_a_lost_acknowledgement_is_what_idempotence_is_for(
    cluster: Cluster, idempotent: bool, stored: int
) -> None:
    topic = cluster.create_topic(f"lost-{stored}")
    config = {"enable.idempotence": idempotent, "retry.backoff.ms": 10, "reconnect.backoff.ms": 10}
    with cluster.fault("Produce", topic=topic, lose_answer=True, times=1):
        assert delivered(cluster, [(topic, 0, "a")], **config) == [None]
    assert end_of(cluster, topic, 0) == stored


def test_an_answer_of_the_whole_is_not_carried_out(cluster: Cluster) -> None:
    topic = cluster.create_topic("groups")
    produced(cluster.bootstrap_servers, topic, ["a"])
    with cluster.fault("FindCoordinator", disconnect=True, times=1) as cut:
        with cluster.fault("JoinGroup", error="COORDINATOR_NOT_AVAILABLE", times=2) as refused:
            assert consumed(cluster.bootstrap_servers, topic, 1) == ["a"]
            assert refused.hits == 2
        assert cut.hits == 1


def test_a_fetch_fails_at_one_partition(cluster: Cluster) -> None:
    topic = cluster.create_topic("fetches")
    produced(cluster.bootstrap_servers, topic, ["a"])
    with cluster.fault("Fetch", topic=topic, partition=0, error="NOT_LEADER_OR_FOLLOWER", times=2) as fault:
        assert consumed(cluster.bootstrap_servers, topic, 1) == ["a"]
        assert fault.hits == 2


def test_a_held_request_goes_on_when_the_fault_is_removed(cluster: Cluster) -> None:
    topic = cluster.create_topic("held")
    found: list[Any] = []
    fault = cluster.fault("Produce", topic=topic, hold=True)
    thread = threading.Thread(target=lambda: found.append(delivered(cluster, [(topic, 0, "a")])))
    thread.start()
    fault.wait(1)
    assert end_of(cluster, topic, 0) == 0
    fault.remove()
    thread.join(20)
    assert found == [[None]] and end_of(cluster, topic, 0) == 1


def test_requests_are_counted_delayed_and_throttled(cluster: Cluster) -> None:
    topic = cluster.create_topic("counted")
    with cluster.fault("Produce", client="other") as other, cluster.fault("Produce", topic=topic) as counted:
        assert delivered(cluster, [(topic, 0, "a")]) == [None]
        assert (other.hits, counted.hits) == (0, 1)
    with cluster.fault("Produce", topic=topic, delay_s=0.2, throttle_ms=10) as late:
        assert delivered(cluster, [(topic, 0, "b")]) == [None]
        late.wait()
    seen: list[Any] = []
    with cluster.fault("Produce", predicate=lambda body: bool(seen.append(body)) or True, node=0) as mine:
        delivered(cluster, [(topic, 0, "c")])
    assert mine.hits == len(seen) == 1 and seen[0].acks == -1
    assert any(event.text.startswith("requests Produce: topic=counted") for event in cluster.events)


def test_who_only_counts_sees_what_a_fault_meets_and_does_not_spare_it(cluster: Cluster) -> None:
    topic = cluster.create_topic("observed")
    error = "TOPIC_AUTHORIZATION_FAILED"
    with cluster.observe("Produce", topic=topic) as before, cluster.fault("Produce", error=error) as refused:
        with cluster.observe("Produce", topic=topic) as after:
            assert delivered(cluster, [(topic, 0, "a")]) == [error]
        assert (before.hits, refused.hits, after.hits) == (1, 1, 1)
    with pytest.raises(ClusterError, match="observe only counts, and has no error, times: use fault"):
        cluster.observe("Produce", error=error, times=1)  # type: ignore[call-arg]


def test_what_no_broker_would_do_is_one_line(cluster: Cluster) -> None:
    for api, how, text in (
        ("Produces", {}, "no API 'Produces'"),
        ("Produce", {"error": "NOT_LEADER"}, "no error 'NOT_LEADER'"),
        ("Produce", {"error": "NONE"}, "no error 'NONE'"),
        ("DescribeAcls", {"code": "REQUEST_TIMED_OUT"}, "no code: it has topic"),
        ("DeleteAcls", {"error": "REQUEST_TIMED_OUT"}, "DeleteAcls has neither"),
        ("Produce", {"node": 9}, "no node 9"),
        ("Produce", {"latency": 9}, "no latency: it has topic"),
    ):
        with pytest.raises(ClusterError, match=text) as caught:
            cluster.fault(api, **how)  # type: ignore[arg-type]
        assert "\n" not in str(caught.value)
    fault = cluster.fault("EndTxn")
    fault._timeout_s = 0.05
    with pytest.raises(
        ClusterTimeoutError, match=r"for 1 requests, and 0 came: requests EndTxn: counted; .*s"
    ):
        fault.wait()
    fault.remove()


def admin(cluster: Cluster) -> AdminClient:
    return AdminClient({"bootstrap.servers": cluster.bootstrap_servers})


def test_one_topic_of_a_request_is_refused_and_the_other_created(cluster: Cluster) -> None:
    with cluster.fault("CreateTopics", topic="refused", error="POLICY_VIOLATION") as fault:
        client = admin(cluster)
        created = client.create_topics([NewTopic("refused", 1, 1), NewTopic("other", 1, 1)])
        with pytest.raises(KafkaException, match="POLICY_VIOLATION"):
            created["refused"].result(20)
        created["other"].result(20)
        assert fault.hits == 1


def test_requests_of_one_group_one_transaction_and_one_resource_are_met(cluster: Cluster) -> None:
    topic = cluster.create_topic("named")
    produced(cluster.bootstrap_servers, topic, ["a"])
    with (
        cluster.fault("FindCoordinator", group="g", error="COORDINATOR_NOT_AVAILABLE", times=2) as of_group,
        cluster.fault("FindCoordinator", group="h") as of_another,
        cluster.fault("FindCoordinator", transaction="tx") as of_transaction,
        cluster.fault("JoinGroup", group="g") as joins,
        cluster.fault("IncrementalAlterConfigs", resource=topic, error="INVALID_CONFIG") as alters,
    ):
        assert consumed(cluster.bootstrap_servers, topic, 1) == ["a"]
        producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "transactional.id": "tx"})
        producer.init_transactions(20)
        change = ConfigEntry("retention.ms", "1", incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[change])
        client = admin(cluster)
        with pytest.raises(KafkaException, match="INVALID_CONFIG"):
            client.incremental_alter_configs([resource])[resource].result(20)
        hits = [each.hits for each in (of_group, of_another, alters)]
        assert hits == [2, 0, 1] and joins.hits >= 1 and of_transaction.hits >= 1


def test_a_function_sees_requests_and_decides(cluster: Cluster) -> None:
    topic = cluster.create_topic("intercepted")
    seen: list[Intercepted] = []

    def change(request: Intercepted) -> Any:
        seen.append(request)
        if len(seen) == 1:
            return lambda answer: replace(answer, throttle_time_ms=1)
        return replace(request.body, acks=1) if len(seen) == 2 else None

    with cluster.intercept("Produce", change):
        for value in ("a", "b", "c"):
            assert delivered(cluster, [(topic, 0, value)]) == [None]
    assert [(each.api, each.node, each.client_id) for each in seen] == [("Produce", 0, "rdkafka")] * 3
    refusal = InitProducerIdResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    with cluster.intercept("InitProducerId", lambda request: refusal):
        producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "transactional.id": "refused"})
        with pytest.raises(KafkaException, match="CLUSTER_AUTHORIZATION_FAILED"):
            producer.init_transactions(20)


def test_a_function_that_fails_is_named(cluster: Cluster) -> None:
    topic = cluster.create_topic("failing-function")
    with pytest.raises(ClusterError, match="function for Produce failed: ZeroDivisionError: division"):
        with cluster.intercept("Produce", lambda request: 1 / 0):
            delivered(cluster, [(topic, 0, "a")], **{"message.timeout.ms": 500})
    with pytest.raises(ClusterError, match="a str, not a ProduceResponse"):
        with cluster.intercept("Produce", lambda request: "nonsense"):
            delivered(cluster, [(topic, 0, "a")], **{"message.timeout.ms": 500})
    with pytest.raises(ClusterError, match="no API 'Publish'"):
        cluster.intercept("Publish", lambda request: None)
    assert delivered(cluster, [(topic, 0, "b")]) == [None]


# What tests wait for without sleeping, and what they read without a client.


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
