"""What a broker's configuration and directories say of who it is (S0.1 to S0.4, S0.27)."""

from __future__ import annotations

import pytest

from metaquorum.broker.events import SendToController
from metaquorum.broker.server.identity import IdentityConflict, IdentityFile, known_identity
from metaquorum.broker.session import BrokerSession
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.node_configs import BrokerConfig
from metaquorum.metadata.records.types import BrokerEndpoint
from metaquorum.metadata.requests.common import RegisterBrokerRequest
from metaquorum.raft.events import Stop
from metaquorum.storage.files.meta_properties import MetaProperties
from tests.controllers import channel, reported

CLUSTER = "Xk7gN1qkQ3uWm5dJ3v5c2A"


def found(name: str, node_id: int | None = None, cluster_id: str | None = CLUSTER) -> IdentityFile:
    properties = None
    if node_id is not None:
        properties = MetaProperties(cluster_id=cluster_id, node_id=node_id, directory_id=b"d" * 16)
    return IdentityFile(path=name, file=f"{name}/meta.properties", properties=properties)


def test_s0_1_an_explicit_id_comes_first() -> None:
    known = known_identity(7, [found("a"), found("b")])
    assert (known.node_id, known.cluster_id, known.unwritten) == (7, None, ("a", "b"))
    assert known.is_blank


def test_s0_1_then_the_id_in_a_directory() -> None:
    known = known_identity(None, [found("a", 7), found("b", 7)])
    assert (known.node_id, known.cluster_id, known.unwritten) == (7, CLUSTER, ())


def test_s0_1_then_the_cluster_has_to_be_asked() -> None:
    known = known_identity(None, [found("a"), found("b")])
    assert known.node_id is None and known.cluster_id is None and known.is_blank


def test_s0_2_an_explicit_id_and_a_file_that_agree() -> None:
    assert known_identity(7, [found("a", 7), found("b")]).node_id == 7


def test_s0_2_an_explicit_id_and_a_file_that_do_not_name_both_and_the_file() -> None:
    with pytest.raises(IdentityConflict) as caught:
        known_identity(7, [found("a"), found("/data/b", 8)])
    text = str(caught.value)
    assert "node.id is 7" in text and "/data/b/meta.properties says 8" in text and "\n" not in text


@pytest.mark.parametrize("survivor", [0, 1, 2])
def test_s0_27_any_surviving_directory_says_who_it_is(survivor: int) -> None:
    known = known_identity(None, [found(f"d{at}", 7 if at == survivor else None) for at in range(3)])
    assert known.node_id == 7 and known.cluster_id == CLUSTER and not known.is_blank
    assert known.unwritten == tuple(f"d{at}" for at in range(3) if at != survivor)


@pytest.mark.parametrize("explicit", [None, 7])
def test_s0_27_directories_of_two_brokers(explicit: int | None) -> None:
    with pytest.raises(IdentityConflict) as caught:
        known_identity(explicit, [found("a", 7), found("b"), found("c", 8)])
    assert "a/meta.properties says that this broker is 7" in str(caught.value)
    assert "c/meta.properties says 8" in str(caught.value)


def test_s0_27_directories_of_two_clusters() -> None:
    with pytest.raises(IdentityConflict) as caught:
        known_identity(None, [found("a", 7), found("b", 7, "another")])
    assert CLUSTER in str(caught.value) and "another" in str(caught.value)


def test_an_old_file_without_an_id_keeps_the_broker_from_taking_over_another() -> None:
    old = IdentityFile(
        path="a",
        file="a/meta.properties",
        properties=MetaProperties(cluster_id=CLUSTER, node_id=None, directory_id=None, version=0),
    )
    known = known_identity(None, [old, found("b")])
    assert known.node_id is None and known.cluster_id == CLUSTER and not known.is_blank


def test_s0_4_a_refused_id_ends_the_broker_and_is_never_exchanged_for_another() -> None:
    config = BrokerConfig(
        node_id=7,
        cluster_id=CLUSTER,
        endpoints=(BrokerEndpoint("PLAINTEXT", "127.0.0.1", 9092, 0),),
        directories=(b"d" * 16,),
        binding_key="host-a",
        initial_broker_registration_timeout_ms=5_000,
    )
    session = BrokerSession(config, incarnation_id=b"i" * 16, channel=channel(3000))
    effects = [*session.start(0), *session.high_watermark_known(0, 0)]
    asked: list[RegisterBrokerRequest] = []
    now_ms = 0
    while not any(isinstance(effect, Stop) for effect in effects):
        sent = [effect for effect in effects if isinstance(effect, SendToController)]
        effects = []
        for effect in sent:
            assert isinstance(effect.request, RegisterBrokerRequest)
            asked.append(effect.request)
            refused = ApiError(ErrorCode.DUPLICATE_BROKER_REGISTRATION, "id 7 is held by another process")
            effects += session.reported(now_ms, reported(effect, refused))
        now_ms = max(now_ms + 1, session.next_deadline_ms() or 0)
        effects += session.tick(now_ms)
    stop = next(effect for effect in effects if isinstance(effect, Stop))
    assert stop.failed and "id 7 is held by another process" in stop.reason
    assert len(asked) > 3 and {request.broker_id for request in asked} == {7}
    assert {request.binding_key for request in asked} == {"host-a"}
