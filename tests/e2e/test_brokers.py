"""Brokers as processes: starting, killed, restarted, shut down, refused, and when they serve clients."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from metaquorum.clients.admin.cluster import list_brokers, unregister_broker
from metaquorum.clients.admin.topics import list_topics
from metaquorum.clients.kafka.cluster import KafkaClient
from metaquorum.clients.search import ClientError
from metaquorum.metadata.errors import ApiError, ErrorCode
from tests.e2e.cluster import FAST_BROKERS, HOST, Cluster, Node, client_loop, random_id
from tests.e2e.processes import wait_until

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(
        tmp_path_factory.mktemp("brokers"), controllers=3, brokers=2, properties=FAST_BROKERS
    ) as cluster:
        yield cluster
        cluster.assert_no_bugs()


@pytest.fixture
def cluster(running: Cluster) -> Cluster:
    """With every node up, whatever the previous test has done."""
    running.start()
    return running


def served(cluster: Cluster, broker: Node) -> set[str] | None:
    """The topics that the broker names to clients; None while it does not serve them."""

    async def ask() -> set[str] | None:
        async with KafkaClient(f"{HOST}:{broker.kafka_port}", timeout_ms=3_000) as client:
            known = {each.broker_id: each.fenced for each in await list_brokers(client)}
            names = {each.name for each in await list_topics(client)}
            return None if known[broker.node_id] else names

    try:
        return client_loop().call(ask())
    except ClientError:
        return None  # it does not listen yet


def test_a_broker_joins_and_serves_its_image(cluster: Cluster) -> None:
    cluster.create_topic("joined", partitions=3)
    registrations = cluster.registrations()
    assert {one.fenced for one in registrations.values()} == {False}
    for broker in cluster.brokers:
        wait_until(
            lambda broker=broker: "joined" in (served(cluster, broker) or ()),
            f"{broker.name} to serve the new topic",
        )
        (endpoint,) = [
            each for each in registrations[broker.node_id].endpoints if each.name.startswith("GRPC")
        ]
        assert (endpoint.host, endpoint.port) == ("127.0.0.1", broker.port)


def test_kill_9_fences_and_the_same_id_comes_back_with_a_higher_epoch(cluster: Cluster) -> None:
    broker = cluster.brokers[0]
    before = cluster.registrations()[broker.node_id]
    broker.kill()
    cluster.wait_brokers({broker.node_id: "fenced", 1: "running"})
    fenced = cluster.registrations()[broker.node_id]
    assert (fenced.epoch, fenced.incarnation_id) == (before.epoch, before.incarnation_id)
    broker.start()
    after = cluster.wait_new_epoch(broker.node_id, after=before.epoch)
    assert after.incarnation_id != before.incarnation_id
    assert after.directories == before.directories
    assert "DUPLICATE_BROKER_REGISTRATION" not in broker.output()


def test_a_fast_bounce_after_kill_9_waits_for_the_old_session(cluster: Cluster) -> None:
    """The new process starts while the old one's lease is valid: it is refused at first, and then
    accepted."""
    broker = cluster.brokers[0]
    before = cluster.registrations()[broker.node_id]
    broker.kill()
    broker.start()
    after = cluster.wait_new_epoch(broker.node_id, after=before.epoch)
    assert after.incarnation_id != before.incarnation_id
    assert broker.is_running
    assert wait_until(lambda: served(cluster, broker), "it to serve again")


def test_controlled_shutdown_moves_leaders_and_ends_with_0(cluster: Cluster) -> None:
    leaving, staying = cluster.brokers[:2]
    before = cluster.registrations()[leaving.node_id]
    cluster.create_topic("led", assignments=((leaving.node_id, staying.node_id),) * 3)
    assert {partition.leader for partition in cluster.partitions("led")} == {leaving.node_id}
    assert leaving.stop() == 0
    assert "granted the shutdown" in leaving.last_line()
    cluster.wait_brokers({leaving.node_id: "fenced"})
    partitions = cluster.partitions("led")
    assert {partition.leader for partition in partitions} == {staying.node_id}
    assert {tuple(partition.isr) for partition in partitions} == {(staying.node_id,)}
    # It gave its lease back: no broker holds its id, and its successor is accepted at once.
    leaving.start()
    cluster.wait_new_epoch(leaving.node_id, after=before.epoch)
    assert "DUPLICATE_BROKER_REGISTRATION" not in leaving.output()


def test_a_second_process_with_a_live_id_is_refused(cluster: Cluster) -> None:
    first = cluster.brokers[0]
    before = cluster.registrations()[first.node_id]
    twin = cluster.add_broker(first.node_id, home="twin")
    try:
        twin.set_properties({"initial.broker.registration.timeout.ms": "1500"})
        twin.start()
        assert twin.wait_exit() == 1
        last = twin.last_line()
        assert f"broker {first.node_id}: could not register within 1500 ms" in last
        assert "DUPLICATE_BROKER_REGISTRATION" in last and "stop that process" in last
        assert sum("WARNING" in line and "DUPLICATE" in line for line in twin.lines()) == 1, twin.output()
        after = cluster.registrations()[first.node_id]
        assert (after.epoch, after.incarnation_id, after.fenced) == (
            before.epoch,
            before.incarnation_id,
            False,
        )
        assert first.is_running and served(cluster, first)
    finally:
        twin.kill()
        cluster.nodes.remove(twin)


def test_a_broker_of_another_cluster_is_refused(cluster: Cluster) -> None:
    other_id = random_id()
    stranger = cluster.add_broker(7, cluster_id=other_id)
    try:
        stranger.start()
        assert stranger.wait_exit() == 1
        assert other_id in stranger.last_line() and "does not belong to cluster" in stranger.last_line()
        assert 7 not in cluster.registrations()
    finally:
        stranger.kill()
        cluster.nodes.remove(stranger)


def test_brokers_fence_themselves_when_no_controller_answers(cluster: Cluster) -> None:
    cluster.create_topic("before-the-silence")
    epochs = {broker_id: one.epoch for broker_id, one in cluster.registrations().items()}
    late = cluster.brokers[1]
    late.stop()
    lonely = cluster.brokers[0]
    wait_until(
        lambda: "before-the-silence" in (served(cluster, lonely) or ()),
        "the broker to serve the topic",
    )
    incarnation = cluster.registrations()[lonely.node_id].incarnation_id
    for node in cluster.controllers:
        node.pause()
    try:
        wait_until(lambda: served(cluster, lonely) is None, "the broker to fence itself")
        assert lonely.wait_for_line("RUNNING -> FENCED: no heartbeat was answered in time")
        # A broker that starts now has never been unfenced, and serves no client.
        late.start()
        late.wait_for_line("listens on")
        assert served(cluster, late) is None
    finally:
        for node in cluster.controllers:
            node.resume()
    wait_until(lambda: served(cluster, lonely), "the broker to serve again", timeout_s=60)
    cluster.wait_new_epoch(late.node_id, after=epochs[late.node_id])
    after = cluster.registrations()[lonely.node_id]
    assert after.incarnation_id == incarnation
    assert after.epoch >= epochs[lonely.node_id]


def test_a_paused_broker_never_answers_with_what_was_true_before(cluster: Cluster) -> None:
    """SIGSTOP past the lease: when it continues it must not serve the image that it had."""
    broker = cluster.brokers[0]
    broker.pause()
    try:
        cluster.wait_brokers({broker.node_id: "fenced"})
        cluster.create_topic("while-it-was-paused")
    finally:
        broker.resume()

    def answered() -> set[str] | None:
        found = served(cluster, broker)
        assert found is None or "while-it-was-paused" in found, "it served an old image"
        return found

    wait_until(answered, "the broker to serve again", timeout_s=60)
    cluster.wait_brokers({broker.node_id: "running"})
    assert broker.is_running


def test_an_unregistered_broker_is_gone(cluster: Cluster) -> None:
    guest = cluster.add_broker(9)
    try:
        guest.start()
        cluster.wait_brokers({9: "running"})
        with pytest.raises(ApiError) as refused:
            cluster.kafka(lambda client: unregister_broker(client, 77))
        assert refused.value.code is ErrorCode.BROKER_ID_NOT_REGISTERED
        assert guest.stop() == 0
        cluster.kafka(lambda client: unregister_broker(client, 9))
        assert 9 not in cluster.registrations()
    finally:
        guest.kill()
        cluster.nodes.remove(guest)
