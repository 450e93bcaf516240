"""Brokers of Apache Kafka at a running controller of ours, from the first frame to the last."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from metaquorum.broker.server.main import _features
from metaquorum.controller.features import unsupported_feature
from metaquorum.metadata.image.image import FeaturesImage
from metaquorum.wire import messages as wire
from metaquorum.wire.principal import ForwardedPrincipal
from metaquorum.wire.table import API_BY_NAME
from tests.unit.server.certificates import certificates_of, foreign_client
from tests.unit.server.foreign_broker import Channel, ForeignBroker
from tests.unit.server.nodes import Site, new_site, running_controller

LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
ONE, TWO = 11, 12
USERS = 'user_node="node-secret" user_alice="alice-secret"'


def with_kafka(site: Site, protocol: str = "PLAINTEXT", **more: str) -> Path:
    """The controller's file, with a listener for Kafka's nodes at the site's other port."""
    both = f"CONTROLLER://127.0.0.1:{site.controller_port},KAFKA://127.0.0.1:{site.kafka_port}"
    return site.controller_file(
        {
            "listeners": both,
            "controller.listener.names": "CONTROLLER,KAFKA",
            "listener.security.protocol.map": f"CONTROLLER:PLAINTEXT,KAFKA:{protocol}",
            "broker.session.timeout.ms": "4000",
            **more,
        }
    )


@pytest.fixture(name="site")
def fixture_site(tmp_path: Path) -> Site:
    return new_site(tmp_path)


async def registered(site: Site, broker: ForeignBroker, channel: Channel) -> None:
    """Waits until the controller is active and has taken the registration."""
    code = 41
    async with asyncio.timeout(60):
        while code == 41:
            code = await broker.register(channel)
    assert code == 0


@contextlib.asynccontextmanager
async def controller(path: Path, port: int) -> AsyncIterator[None]:
    """A controller that accepts connections."""
    async with running_controller(path):
        async with asyncio.timeout(60):
            while True:
                with contextlib.suppress(ConnectionRefusedError):
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                    writer.close()
                    break
                await asyncio.sleep(0.05)
        yield


async def test_a_broker_of_kafka_lives_from_registration_to_shutdown(site: Site) -> None:
    one, two = ForeignBroker(ONE), ForeignBroker(TWO)
    async with (
        controller(with_kafka(site), site.kafka_port),
        Channel(site.kafka_port) as beats,
        Channel(site.kafka_port, client_id="raft-client-1") as fetches,
        Channel(site.kafka_port) as others,
    ):
        offered = await beats.versions()
        for name, versions in {
            "BrokerRegistration": (0, 4),
            "BrokerHeartbeat": (0, 1),
            "AlterPartition": (0, 3),
            "Envelope": (0, 0),
        }.items():
            assert offered[API_BY_NAME[name].key] == versions
        await starts(site, one, beats, fetches)
        await starts(site, two, others, fetches)
        topic_id = await serves(one, two, beats, fetches)
        await shrinks_and_grows(one, two, topic_id, beats, fetches)
        await is_fenced(one, two, beats, fetches)
        await starts(site, ForeignBroker(TWO, start=1), others, fetches)
        await shuts_down(one, beats, fetches)


async def starts(site: Site, broker: ForeignBroker, beats: Channel, fetches: Channel) -> None:
    """Fenced until it has its own registration and asks to serve, as in A-cluster-start."""
    await registered(site, broker, beats)
    fenced = await broker.beat(beats)
    assert (fenced.is_caught_up, fenced.is_fenced) == (False, True)
    await broker.catch_up(fetches, lambda: known_at(broker) == broker.epoch)
    waiting = await broker.beat(beats, want_fence=True)
    assert (waiting.is_caught_up, waiting.is_fenced) == (True, True)
    answer = await broker.follow(fetches, beats, lambda answer: not answer.is_fenced)
    assert (answer.error_code, answer.is_caught_up) == (0, True)
    await broker.catch_up(fetches, lambda: not broker.state.image.brokers[broker.broker_id].fenced)
    # Again with the same incarnation, as brokers do when the controller changes: the epoch stays.
    epoch = broker.epoch
    assert await broker.register(beats) == 0 and broker.epoch == epoch


def known_at(broker: ForeignBroker) -> int | None:
    known = broker.state.image.brokers.get(broker.broker_id)
    return None if known is None else known.epoch


async def serves(one: ForeignBroker, two: ForeignBroker, beats: Channel, fetches: Channel) -> bytes:
    """Forwards a topic's creation, places its replicas, and gets producer ids for its clients."""
    types = wire.CreateTopicsRequest
    placed = types.CreatableReplicaAssignment(partition_index=0, broker_ids=(ONE, TWO))
    topic = types.CreatableTopic(
        name="orders", num_partitions=-1, replication_factor=-1, assignments=(placed,)
    )
    made = await one.forward(beats, types(topics=(topic,), timeout_ms=10_000))
    assert [each.error_code for each in made.topics] == [0]
    topic_id: bytes = made.topics[0].topic_id
    await one.catch_up(fetches, lambda: one.state.image.topics.topic_named("orders") is not None)
    assert await one.assign(beats, topic_id, 0) == [0]
    assert await two.assign(beats, topic_id, 0) == [0]
    assert await one.assign(beats, topic_id, 5) == [3]
    blocks = [
        await beats.ask(wire.AllocateProducerIdsRequest(broker_id=ONE, broker_epoch=one.epoch))
        for _ in range(2)
    ]
    first, second = ((each.producer_id_start, each.producer_id_len) for each in blocks)
    assert first[1] == second[1] == 1000 and second[0] == first[0] + 1000
    return topic_id


async def shrinks_and_grows(
    one: ForeignBroker, two: ForeignBroker, topic_id: bytes, beats: Channel, fetches: Channel
) -> None:
    def isr() -> tuple[int, ...]:
        known = one.state.image.topics.partition(topic_id, 0)
        return () if known is None else known.isr

    await one.catch_up(
        fetches, lambda: one.state.image.topics.partition(topic_id, 0).directories[1] == two.directory
    )  # type: ignore[union-attr]
    for wanted in ((one,), (one, two)):
        before = one.alteration(topic_id, *wanted)
        answer = await beats.ask(before)
        (part,) = answer.topics[0].partitions
        members = tuple(each.broker_id for each in wanted)
        assert (answer.error_code, part.error_code, part.leader_id, part.isr) == (0, 0, ONE, members)
        await one.catch_up(fetches, lambda members=members: isr() == members)  # type: ignore[misc]
        late = (await beats.ask(before)).topics[0].partitions[0]
        assert late.error_code == 95
    stale = one.alteration(topic_id, one, ForeignBroker(TWO))
    assert (await beats.ask(stale)).topics[0].partitions[0].error_code == 0  # an epoch of -1 is not compared
    unknown = ForeignBroker(TWO)
    unknown.epoch = two.epoch - 1
    refused = (await beats.ask(one.alteration(topic_id, one, unknown))).topics[0].partitions[0]
    assert refused.error_code == 107


async def is_fenced(one: ForeignBroker, two: ForeignBroker, beats: Channel, fetches: Channel) -> None:
    """One that sends no more heartbeats, while the other's are answered."""
    await one.follow(fetches, beats, lambda _: one.state.image.brokers[TWO].fenced)
    assert not one.state.image.brokers[ONE].fenced
    assert two.epoch == one.state.image.brokers[TWO].epoch


async def shuts_down(one: ForeignBroker, beats: Channel, fetches: Channel) -> None:
    """Controlled shutdown: it may stop when it leads nothing and the others have seen that."""
    async with asyncio.timeout(60):
        while not (answer := await one.beat(beats, want_shut_down=True)).should_shut_down:
            assert answer.error_code == 0
            await one.fetch(fetches)
    await one.catch_up(fetches, lambda: one.state.image.brokers[ONE].fenced)
    partition = one.state.image.topics.partition(one.state.image.topics.topic_named("orders").topic_id, 0)  # type: ignore[union-attr]
    assert partition is not None and partition.leader != ONE
    gone = await beats.ask(wire.UnregisterBrokerRequest(broker_id=ONE))
    assert gone.error_code == 0
    assert (await one.beat(beats)).error_code == 77


BAD = {
    "another cluster": ({"cluster_id": "AAAAAAAAAAAAAAAAAAAAAA"}, 104),
    "no features": ({"features": ()}, 35),
    "a metadata.version that is too old": ({"features": ((1, 4),)}, 35),
    "a metadata.version that is too new": ({"features": ((50, 60),)}, 35),
    "an unknown incarnation while the broker lives": ({"incarnation_id": b"x" * 16}, 101),
    "no incarnation": ({"incarnation_id": bytes(16)}, 119),
    "no directory": ({"log_dirs": ()}, 119),
    "a reserved directory": ({"log_dirs": (bytes(15) + b"\1",)}, 119),
    "a broker that migrates from ZooKeeper": ({"is_migrating_zk_broker": True}, 102),
    "a security protocol that does not exist": ({"listeners": (("PLAINTEXT", 77),)}, 119),
}


def as_sent(name: str, value: Any) -> Any:
    types = wire.BrokerRegistrationRequest
    if name == "features":
        return tuple(
            types.Feature(name="metadata.version", min_supported_version=low, max_supported_version=high)
            for low, high in value
        )
    if name == "listeners":
        return tuple(
            types.Listener(name=listener, host="h", port=1, security_protocol=protocol)
            for listener, protocol in value
        )
    return value


async def test_bad_brokers_get_kafkas_codes(site: Site) -> None:
    good = ForeignBroker(ONE)
    async with controller(with_kafka(site), site.kafka_port), Channel(site.kafka_port) as beats:
        await registered(site, good, beats)
        found = {}
        for label, (changed, _) in BAD.items():
            fields = {name: as_sent(name, value) for name, value in changed.items()}
            found[label] = await ForeignBroker(ONE if "lives" in label else TWO).register(beats, **fields)
        assert found == {label: code for label, (_, code) in BAD.items()}
        assert await ForeignBroker(3).register(beats, log_dirs=(good.directory,)) == 119
        older = ForeignBroker(ONE)
        older.epoch = good.epoch - 1
        nobody = ForeignBroker(88)
        nobody.epoch = 1
        for broker in (older, nobody):
            beat = await broker.beat(beats)
            assert (beat.error_code, beat.is_fenced, beat.is_caught_up) == (77, True, False)
            block = wire.AllocateProducerIdsRequest(broker_id=broker.broker_id, broker_epoch=broker.epoch)
            assert (await beats.ask(block)).error_code == 77
            isr = wire.AlterPartitionRequest(broker_id=broker.broker_id, broker_epoch=broker.epoch)
            assert (await beats.ask(isr)).error_code == 77
            places = wire.AssignReplicasToDirsRequest(broker_id=broker.broker_id, broker_epoch=broker.epoch)
            assert (await beats.ask(places)).error_code == 77
        with pytest.raises(asyncio.IncompleteReadError):
            await beats.ask(wire.BrokerHeartbeatRequest(), 2)  # not a version of 3.7 to 4.0


# ---- who may


SECURED = {
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.kafka.plain.sasl.jaas.config": f"{LOGIN} {USERS};",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:node",
}
REFUSED = 31


@pytest.fixture(name="certificates", scope="module")
def fixture_certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    certificates_of(folder, "server", "node", "alice")
    return folder


async def may_act(site: Site, channel: Channel, broker: ForeignBroker) -> None:
    """A node's principal: it registers, fetches and forwards, what it forwards with the client's rights."""
    await registered(site, broker, channel)
    await broker.catch_up(channel, lambda: known_at(broker) == broker.epoch)
    topic = wire.CreateTopicsRequest.CreatableTopic(name="t", num_partitions=1, replication_factor=1)
    wanted = wire.CreateTopicsRequest(topics=(topic,), timeout_ms=10_000)
    refused = await broker.forward(channel, wanted)
    assert [each.error_code for each in refused.topics] == [29]
    allowed = await broker.forward(channel, wanted, ForwardedPrincipal("User:node", False))
    assert [each.error_code for each in allowed.topics] != [29]


async def may_not_act(channel: Channel) -> None:
    """A client without ClusterAction: every request of nodes is refused, with what it asks for unchanged."""
    broker = ForeignBroker(9)
    assert await broker.register(channel) == REFUSED
    assert (await broker.beat(channel)).error_code == REFUSED
    for body in (
        wire.AlterPartitionRequest(broker_id=9),
        wire.AllocateProducerIdsRequest(broker_id=9),
        wire.AssignReplicasToDirsRequest(broker_id=9),
        wire.ControllerRegistrationRequest(controller_id=9),
        wire.UnregisterBrokerRequest(broker_id=9),
        wire.FetchRequest(),
    ):
        assert (await channel.ask(body)).error_code == REFUSED
    principal = ForwardedPrincipal("User:node", False)  # it may not say that it is another
    assert await broker.forward(channel, wire.CreateTopicsRequest(topics=()), principal) == REFUSED


@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL"])
async def test_nodes_log_in_at_controllers(site: Site, certificates: Path, protocol: str) -> None:
    keys = {"ssl.keystore.location": str(certificates / "server.pem")} if protocol == "SASL_SSL" else {}
    context = foreign_client(certificates) if keys else None
    async with controller(with_kafka(site, protocol, **SECURED, **keys), site.kafka_port):
        async with Channel(site.kafka_port, context) as channel:
            assert await channel.log_in("node", "node-secret") == 0
            await may_act(site, channel, ForeignBroker(ONE))
        async with Channel(site.kafka_port, context) as channel:
            assert await channel.log_in("alice", "alice-secret") == 0
            await may_not_act(channel)
        for user, password in (("node", "alice-secret"), ("nobody", "")):
            async with Channel(site.kafka_port, context) as channel:
                assert await channel.log_in(user, password) == 58
                with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                    await channel.ask(wire.BrokerHeartbeatRequest())
        async with Channel(site.kafka_port, context) as channel:
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                await ForeignBroker(3).register(channel)  # without a login


async def test_nodes_show_certificates_at_controllers(site: Site, certificates: Path) -> None:
    keys = {
        "ssl.keystore.location": str(certificates / "server.pem"),
        "ssl.truststore.location": str(certificates / "authority.crt"),
        "ssl.client.auth": "required",
        "ssl.principal.mapping.rules": "RULE:^CN=(.*?)$/$1/",
        "authorizer.class.name": SECURED["authorizer.class.name"],
        "super.users": "User:node",
    }
    async with controller(with_kafka(site, "SSL", **keys), site.kafka_port):
        async with Channel(site.kafka_port, foreign_client(certificates, own="node")) as channel:
            await may_act(site, channel, ForeignBroker(ONE))
        async with Channel(site.kafka_port, foreign_client(certificates, own="alice")) as channel:
            await may_not_act(channel)
        with pytest.raises((OSError, asyncio.IncompleteReadError)):
            async with Channel(site.kafka_port, foreign_client(certificates)) as channel:
                await channel.versions()
        with pytest.raises((OSError, asyncio.IncompleteReadError)):
            async with Channel(site.kafka_port) as channel:
                await channel.versions()


# What a broker of ours can work at: the levels that Kafka 4.2 finalizes in every new cluster.


OF_KAFKA_4_2 = {
    "eligible.leader.replicas.version": 1,
    "group.version": 1,
    "metadata.version": 29,
    "share.version": 1,
    "streams.version": 1,
    "transaction.version": 2,
}


def test_a_broker_works_in_a_cluster_of_kafka_4_2() -> None:
    assert unsupported_feature(FeaturesImage(finalized=OF_KAFKA_4_2), _features()) is None
    text = unsupported_feature(FeaturesImage(finalized=OF_KAFKA_4_2 | {"share.version": 2}), _features())
    assert text == (
        "the cluster is at share.version level 2, but this broker supports 0 to 1: run a broker release that"
        " supports level 2"
    )
