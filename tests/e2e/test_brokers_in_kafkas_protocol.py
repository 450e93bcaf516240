"""Brokers that ask their controllers by Kafka's protocol: from registration to shutdown, and what they say of
controllers that they cannot ask."""

from __future__ import annotations

import signal
from pathlib import Path

from metaquorum.metadata.errors import ErrorCode
from metaquorum.wire.messages import CreateTopicsRequest
from tests.e2e.broken_disks import FaultFile
from tests.e2e.cluster import FAST_BROKERS, HOST, Node, log_end_offset, log_start_offset, random_id
from tests.e2e.data_calls import DataCalls
from tests.e2e.kafka_quorum import (
    BROKERS_LOGIN,
    JAAS_KEY,
    LOGIN,
    PLAIN,
    SMALL_LOG,
    USERS,
    KafkaQuorum,
    certificates,
    mutual_tls,
)

FAST = FAST_BROKERS["controller"]
FAST_BROKER = {
    **FAST_BROKERS["broker"],
    "replica.lag.time.max.ms": "3000",
    "replica.fetch.backoff.ms": "100",
}


def values(first: int, end: int) -> list[bytes]:
    return [f"message {number}".encode() for number in range(first, end)]


def create(cluster: KafkaQuorum, name: str, *, partitions: int = 1, replicas: int = 3) -> None:
    """A client's request, which its broker passes on in an Envelope."""
    kinds = CreateTopicsRequest
    topic = kinds.CreatableTopic(name=name, num_partitions=partitions, replication_factor=replicas)
    answer = cluster.kafka(lambda client: client.ask(kinds(topics=(topic,), timeout_ms=30_000)))
    assert [each.error_code for each in answer.topics] == [0], answer


def wait_isr(cluster: KafkaQuorum, calls: DataCalls, brokers: set[int]) -> None:
    cluster.wait(lambda: set(calls.partition("orders").isr) == brokers, f"orders to be in sync on {brokers}")


def test_brokers_live_at_controllers_of_kafkas_protocol(tmp_path: Path) -> None:
    """With a login: a topic of a client, a killed controller, a shutdown, a killed broker, a log directory
    that fails, and a broker that catches up by a snapshot. Every acknowledged message is read at the end."""
    with KafkaQuorum(
        tmp_path,
        keys=LOGIN | SMALL_LOG | FAST,
        brokers=3,
        brokers_too=True,
        broker_keys=BROKERS_LOGIN | FAST_BROKER,
        log_dirs=2,
    ) as cluster:
        one, two, three = cluster.brokers
        fault = FaultFile(two.home / "fault.json")
        for node in cluster.nodes:
            node.start(environment=fault.environment) if node is two else node.start()
        cluster.start()
        calls = DataCalls(cluster)
        create(cluster, "orders")
        assert calls.produce_until_taken("orders", values(0, 10)).base_offset == 0
        wait_isr(cluster, calls, {0, 1, 2})
        # Each of two directories was chosen by the broker, which told the controller.
        cluster.wait(lambda: all(known(calls)), "the directories of all replicas in the log")

        leader, epoch = cluster.leader(), cluster.quorum().leader_epoch
        cluster.kill_all([leader])
        cluster.wait_leader(after_epoch=epoch, not_node=leader.node_id)
        create(cluster, "after-a-failover")
        assert calls.produce_until_taken("orders", values(10, 20)).base_offset == 10
        cluster.wait_brokers({node.node_id: "running" for node in cluster.brokers})
        leader.start()

        was = cluster.registrations()[three.node_id].epoch
        assert three.stop() == 0
        three.wait_for_line("granted the shutdown")
        cluster.wait_brokers({three.node_id: "fenced"})
        behind = log_end_offset(three)
        now, number = cluster.leader(), 0

        def trimmed() -> bool:
            nonlocal number
            number += 1
            create(cluster, f"while-away-{number}", partitions=20, replicas=2)
            return log_start_offset(now) > behind

        cluster.wait(trimmed, "a log that begins after the stopped broker's end")
        three.start()
        cluster.wait_new_epoch(three.node_id, after=was)
        cluster.wait(lambda: log_start_offset(three) > behind, "a log that continues from the snapshot")
        wait_isr(cluster, calls, {0, 1, 2})

        was = cluster.registrations()[one.node_id].epoch
        one.signal(signal.SIGKILL)
        one.wait_exit()
        cluster.wait_brokers({one.node_id: "fenced"})
        assert calls.produce_until_taken("orders", values(20, 30)).base_offset == 20
        one.start()
        cluster.wait_new_epoch(one.node_id, after=was)
        wait_isr(cluster, calls, {0, 1, 2})

        directory = next(
            path
            for path, each in calls.directories(two).items()
            if any(topic.name == "orders" for topic in each.topics)
        )
        fault.add(directory, "eio")
        wait_isr(cluster, calls, {0, 2})
        assert two.is_running and not cluster.registrations()[two.node_id].fenced
        found = calls.directories(two)
        assert found[directory].error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert calls.read_all(calls.leader("orders"), "orders", up_to=30) == list(enumerate(values(0, 30)))
        assert cluster.stop() == {node.name: 0 for node in cluster.nodes}
        cluster.assert_no_bugs()


def known(calls: DataCalls) -> list[bool]:
    return [int.from_bytes(each) > 100 for each in calls.partition("orders").directories]


def test_what_a_broker_says_of_controllers_that_it_cannot_ask(tmp_path: Path) -> None:
    """Each time one line, what it waits for, and the end of a start that leads nowhere; a running broker
    stops serving when the controllers are silent, and returns with them."""
    users = f'{USERS} user_alice="alice-secret"'
    with KafkaQuorum(
        tmp_path,
        keys=LOGIN | FAST | {JAAS_KEY: f"{PLAIN} required {users};"},
        controllers=1,
        brokers=1,
        brokers_too=True,
        broker_keys=BROKERS_LOGIN | FAST_BROKER | {"initial.broker.registration.timeout.ms": "6000"},
    ) as cluster:
        (only,), (broker,) = cluster.controllers, cluster.brokers
        cluster.start()
        only.signal(signal.SIGSTOP)
        broker.wait_for_line("RUNNING -> FENCED: no heartbeat was answered in time", timeout_s=60)
        only.signal(signal.SIGCONT)
        broker.wait_for_line("FENCED -> RUNNING", timeout_s=60)
        cluster.wait_brokers({broker.node_id: "running"})
        assert broker.stop() == 0

        where = f"node {only.node_id} at {HOST}:{only.kafka_port} cannot be asked: "
        as_before = {JAAS_KEY: BROKERS_LOGIN[JAAS_KEY]}
        wrong = {JAAS_KEY: f'{PLAIN} required username="node" password="other";'}
        assert ends_with(broker, wrong, where + "it refuses the login: ")
        alice = {JAAS_KEY: f'{PLAIN} required username="alice" password="alice-secret";'}
        rights = "it refuses Fetch: CLUSTER_AUTHORIZATION_FAILED; allow this node's principal ClusterAction"
        assert ends_with(broker, alice, where + rights)
        key = "listener.security.protocol.map"
        plain = {**as_before, key: "PLAINTEXT:PLAINTEXT,GRPC_CONTROLLER:PLAINTEXT,KAFKA:PLAINTEXT"}
        assert ends_with(broker, plain, where + "it closed the connection")
        grpc = {"controller.quorum.voters": cluster.grpc_voters}
        at = f"node {only.node_id} at {only.address} cannot be asked: "
        assert ends_with(broker, grpc, at + "it speaks gRPC there, and not Kafka's protocol")

        stranger = cluster.add_broker(7, cluster_id=random_id())
        stranger.start()
        assert stranger.wait_exit() == 1
        stranger.wait_for_line(f"controller {only.node_id} does not belong to cluster")
        cluster.assert_no_bugs()


def ends_with(broker: Node, properties: dict[str, str], problem: str) -> bool:
    """Whether a start with these properties says the problem once, and ends because of it."""
    broker.set_properties(properties)
    broker.start()
    assert broker.wait_exit() == 1
    lines = broker.lines()
    _, _, reason = problem.partition("cannot be asked: ")
    assert sum(problem in line for line in lines) == 1, lines
    return f"cannot be followed: {reason}" in lines[-1] and "could not register within" in lines[-1]


def test_a_broker_changes_over_with_a_certificate(tmp_path: Path) -> None:
    """From gRPC to the Kafka listener, with mutual TLS there, and back; a certificate of another authority is
    refused in one line on each side."""
    certificates(tmp_path)
    with KafkaQuorum(tmp_path, keys=mutual_tls(tmp_path), controllers=1, brokers=1) as cluster:
        (only,), (broker,) = cluster.controllers, cluster.brokers
        cluster.start()
        before = cluster.registrations()[broker.node_id].epoch
        assert broker.stop() == 0
        by_kafka = {
            **cluster.by_kafka,
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,GRPC_CONTROLLER:PLAINTEXT,KAFKA:SSL",
            "listener.name.kafka.ssl.keystore.location": str(tmp_path / "node.pem"),
            "listener.name.kafka.ssl.truststore.location": str(tmp_path / "authority.crt"),
        }
        broker.set_properties(by_kafka)
        broker.start()
        epoch = cluster.wait_new_epoch(broker.node_id, after=before).epoch
        create(cluster, "over-tls", replicas=1)
        assert broker.stop() == 0

        stranger = {"listener.name.kafka.ssl.keystore.location": str(tmp_path / "stranger.pem")}
        short = {"initial.broker.registration.timeout.ms": "5000"}
        at = f"node {only.node_id} at {HOST}:{only.kafka_port} cannot be asked: "
        assert ends_with(broker, stranger | short, f"{at}it refuses this client's certificate")
        only.wait_for_line("its certificate is not accepted: unable to get local issuer certificate")

        broker.set_properties(dict.fromkeys([*by_kafka, *short]))
        by_grpc = {"controller.quorum.voters": cluster.grpc_voters, "controller.quorum.protocol": "grpc"}
        broker.set_properties(by_grpc)
        broker.start()
        cluster.wait_new_epoch(broker.node_id, after=epoch)
        assert "over-tls" in cluster.topics()
        cluster.assert_no_bugs()


class Bootstrapped(KafkaQuorum):
    """The voters are in the log (kraft.version 1): nodes know an address to ask, and no ids."""

    @property
    def by_kafka(self) -> dict[str, str]:
        servers = ",".join(f"{HOST}:{each.kafka_port}" for each in self.controllers)
        named = super().by_kafka | {"controller.quorum.bootstrap.servers": servers}
        return {key: value for key, value in named.items() if key != "controller.quorum.voters"}

    def write_config(self, node: Node) -> None:
        super().write_config(node)
        node.set_properties({"controller.quorum.voters": None})

    def _formatting(self, node: Node, cluster_id: str | None) -> list[str]:
        return [each for each in super()._formatting(node, cluster_id) if each != "--new-cluster"]


def test_a_broker_finds_controllers_that_are_in_the_log(tmp_path: Path) -> None:
    with Bootstrapped(
        tmp_path, keys={}, controllers=1, brokers=1, brokers_too=True, formatting=["--standalone"]
    ) as cluster:
        cluster.start()
        create(cluster, "orders", replicas=1)
        assert cluster.quorum().kraft_version == 1
        assert DataCalls(cluster).produce_until_taken("orders", values(0, 3)).base_offset == 0
        assert cluster.stop() == {node.name: 0 for node in cluster.nodes}
        cluster.assert_no_bugs()
