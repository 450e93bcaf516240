"""When leadership is lost, everybody who waits for this node is told, whatever the request waits for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from metaquorum.controller.active.steps import PENDING_APPENDS_MAX
from metaquorum.controller.brokers.brokers import is_caught_up
from metaquorum.controller.events import RequestArrived
from metaquorum.controller.node import TurnQueue
from metaquorum.controller.server.main import node_status
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image import ConfigResource, MetadataImage
from metaquorum.metadata.node_configs import ControllerConfig
from metaquorum.metadata.records.types import ControllerEndpoint, FeatureLevelRecord
from metaquorum.metadata.requests.common import (
    BrokerHeartbeatRequest,
    ReadImageRequest,
    UnregisterBrokerRequest,
)
from metaquorum.metadata.requests.settings import (
    AllocateProducerIdsRequest,
    AlterConfigsRequest,
    ConfigChange,
    ConfigOp,
    CreateTokenRequest,
    FeatureUpdate,
    LevelChange,
    OpKind,
    UpdateFeaturesRequest,
)
from tests.unit.controller.node_quorum import CLUSTER, Quorum, registration
from tests.unit.controller.test_node_brokers import quorum_of
from tests.unit.controller.test_node_leadership import create


def lost(quorum: Quorum, keys: list[int]) -> None:
    """The leader is cut off; when it has resigned, each of `keys` is answered, and no other node did it."""
    old = quorum.leader
    quorum.settle()
    assert not any(key in old.answers for key in keys)
    quorum.advance(5_000)
    assert old.node.active is None
    for key in keys:
        answer = old.answers.get(key)
        assert isinstance(answer, ApiError), (key, answer)
        assert answer.code is ErrorCode.NOT_CONTROLLER
        assert answer.retriable


@pytest.mark.parametrize("unregistrations", [1, 3])
@pytest.mark.parametrize("registrations", [0, 1, 2])
def test_who_waits_for_the_end_of_a_removal_is_told(unregistrations: int, registrations: int) -> None:
    """It stands still: it waits for its first slices to be committed."""
    quorum = quorum_of(slice_max=1)
    quorum.start_broker(1)
    quorum.start_broker(2)
    quorum.create("t", *[(1, 2)] * (PENDING_APPENDS_MAX + 5))
    quorum.disconnect(quorum.leader.node_id)
    old = quorum.leader
    keys = [quorum.request(UnregisterBrokerRequest(broker_id=1), old) for _ in range(unregistrations)]
    keys += [quorum.request(registration(1, 2 + at), old) for at in range(registrations)]
    keys += [quorum.request(create("new"), old), quorum.request(ReadImageRequest(), old)]
    quorum.settle()
    assert old.node.active is not None and len(old.node.active.work) == 1
    lost(quorum, keys)


def test_a_queue_that_was_dropped_holds_nothing_of_the_leadership_that_ended() -> None:
    queue = TurnQueue(waiting_max=3)
    arrived = [RequestArrived(key=key, request=create("t"), arrived_ms=1) for key in range(6)]
    assert [queue.postpone(one) for one in arrived[:4]] == [True, True, True, False]
    queue.add(*arrived[4:])
    assert queue.drop() == [0, 1, 2, 4, 5]
    assert not queue
    queue.add_waiting()
    assert not queue
    assert queue.drop() == []
    assert [queue.postpone(one) for one in arrived[:4]] == [True, True, True, False]


def test_a_broker_that_is_not_registered_has_not_caught_up() -> None:
    request = BrokerHeartbeatRequest(broker_id=1, broker_epoch=7, applied_offset=1 << 40)
    assert not is_caught_up(MetadataImage().brokers, request)


def test_the_status_names_the_endpoints_as_configured() -> None:
    quorum = Quorum()
    node = quorum.elect().node
    node.config = replace(
        node.config,
        endpoints=(ControllerEndpoint("A", "host-a", 9001, 0), ControllerEndpoint("B", "host-b", 9002, 0)),
    )
    found = [(at.name, at.host, at.port) for at in node_status(node).endpoints]
    assert found == [("A", "host-a", 9001), ("B", "host-b", 9002)]


def asked_twice(request: object, level: int = 14) -> tuple[MetadataImage, MetadataImage, Any]:
    """The leader writes it and resigns before it learns of the commit; the request goes to the next leader.
    The images before and after the second time, and the second answer."""
    quorum = Quorum(
        config=ControllerConfig(
            cluster_id=CLUSTER,
            node_id=0,
            bootstrap=(FeatureLevelRecord(name="metadata.version", feature_level=level),),
            delegation_token_secret_key="s3cret",
        )
    )
    quorum.elect()
    epoch = quorum.start_broker(1)
    quorum.create("there", (1,))
    if isinstance(request, AllocateProducerIdsRequest):
        request = msgspec.structs.replace(request, broker_epoch=epoch)
    old = quorum.leader
    quorum.cut |= {(other.node_id, old.node_id) for other in quorum.followers}
    lost(quorum, [quorum.request(request, old)])
    quorum.reconnect(old.node_id)
    new = quorum.elect()
    assert new is not old
    before = new.node.ledger.committed.image
    answer = quorum.call(request)
    return before, new.node.ledger.committed.image, answer


def test_a_topic_of_which_a_lost_leader_said_nothing_may_exist() -> None:
    before, after, answer = asked_twice(create("new"))
    assert [each.error for each in answer.results] == [ErrorCode.TOPIC_ALREADY_EXISTS]
    assert before.topics.topic_named("new") == after.topics.topic_named("new") is not None


def test_no_producer_id_is_given_twice_when_the_answer_of_a_lost_leader_is_asked_for_again() -> None:
    before, after, answer = asked_twice(AllocateProducerIdsRequest(broker_id=1, broker_epoch=0))
    assert before.producer_ids.next_producer_id == answer.first_id == 1000
    assert after.producer_ids.next_producer_id == 2000


def test_settings_and_levels_that_a_lost_leader_wrote_are_the_same_after_the_second_time() -> None:
    topic = ConfigResource(2, "there")
    append = ConfigOp(kind=OpKind.APPEND, name="cleanup.policy", value="compact")
    change = ConfigChange(resource=topic, ops=(append,))
    before, after, answer = asked_twice(AlterConfigsRequest(changes=(change,)))
    assert [each.error for each in answer.results] == [ErrorCode.NONE]
    assert before.configs[topic] == after.configs[topic] == {"cleanup.policy": "delete,compact"}
    update = FeatureUpdate(name="metadata.version", level=14, change=LevelChange.UPGRADE)
    before, after, answer = asked_twice(UpdateFeaturesRequest(updates=(update,)), level=13)
    assert [each.error for each in answer.results] == [ErrorCode.NONE]
    assert before.features.metadata_version == after.features.metadata_version == 14


def test_a_token_that_a_lost_leader_made_is_one_more_without_a_known_secret() -> None:
    before, after, answer = asked_twice(CreateTokenRequest(requester="User:a"))
    assert len(before.delegation_tokens) == 1
    assert len(after.delegation_tokens) == 2
    assert answer.token_id in after.delegation_tokens
    assert answer.token_id not in before.delegation_tokens
