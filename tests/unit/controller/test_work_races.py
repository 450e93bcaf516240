"""Two pieces of the controller's work that meet: what is in slices, and what arrives between two of them."""

from __future__ import annotations

import pytest

from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.invariants import check_image
from metaquorum.metadata.records.types import (
    BrokerRecord,
    FenceBrokerRecord,
    PartitionChangeRecord,
    RemoveTopicRecord,
    UnregisterBrokerRecord,
)
from metaquorum.metadata.requests.common import (
    BrokerHeartbeatResponse,
    DeleteTopicsRequest,
    Done,
    RegisterBrokerResponse,
    UnregisterBrokerRequest,
)
from tests.unit.controller.node_quorum import Quorum, registration
from tests.unit.controller.test_node_brokers import error, quorum_of


def loaded() -> tuple[Quorum, bytes]:
    """Broker 1 leads seven partitions with broker 2; what takes it out of them goes two records at a time."""
    quorum = quorum_of(slice_max=2)
    quorum.start_broker(1)
    quorum.start_broker(2)
    return quorum, quorum.create("t", *[(1, 2)] * 7)


def place_of(quorum: Quorum, start: int, kind: type) -> list[int]:
    return [at for at, record in enumerate(quorum.records(start)) if isinstance(record, kind)]


def sound(quorum: Quorum) -> None:
    assert [at for at in check_image(quorum.image()) if at.severity == "error"] == []


@pytest.mark.parametrize("incarnation", [1, 2])
def test_a_registration_waits_for_the_removal_that_is_under_way(incarnation: int) -> None:
    """Also one of the same incarnation: it must not come between two slices of its own removal."""
    quorum, topic = loaded()
    start = quorum.leader.end_offset
    removal = quorum.request(UnregisterBrokerRequest(broker_id=1))
    again = quorum.request(registration(1, incarnation))
    quorum.settle()
    quorum.advance(500)
    assert quorum.leader.answers[removal] == Done()
    answer = quorum.leader.answers[again]
    assert isinstance(answer, RegisterBrokerResponse), answer
    (gone,) = place_of(quorum, start, UnregisterBrokerRecord)
    (new,) = place_of(quorum, start, BrokerRecord)
    assert max(place_of(quorum, start, PartitionChangeRecord)) < gone < new
    assert all(quorum.partition(topic, at).leader == 2 for at in range(7))
    assert quorum.image().brokers[1].epoch == answer.broker_epoch
    sound(quorum)


def test_who_asks_twice_for_a_removal_is_told_twice_that_it_is_done() -> None:
    quorum, _ = loaded()
    start = quorum.leader.end_offset
    keys = [quorum.request(UnregisterBrokerRequest(broker_id=1)) for _ in range(3)]
    quorum.settle()
    quorum.advance(500)
    assert [quorum.leader.answers[key] for key in keys] == [Done()] * 3
    assert len(place_of(quorum, start, UnregisterBrokerRecord)) == 1
    assert error(quorum.call(UnregisterBrokerRequest(broker_id=1))) is ErrorCode.BROKER_ID_NOT_REGISTERED
    sound(quorum)


def test_a_topic_that_is_deleted_between_two_slices_is_gone() -> None:
    quorum, topic = loaded()
    other = quorum.create("u", *[(1, 2)] * 3)
    start = quorum.leader.end_offset
    removal = quorum.request(UnregisterBrokerRequest(broker_id=1))
    deletion = quorum.request(DeleteTopicsRequest(topics=("t",)))
    quorum.settle()
    quorum.advance(500)
    assert quorum.leader.answers[removal] == Done()
    assert quorum.leader.answers[deletion].results[0].error is ErrorCode.NONE  # type: ignore[attr-defined]
    (deleted,) = place_of(quorum, start, RemoveTopicRecord)
    later = [
        record
        for record in quorum.records(start)[deleted:]
        if isinstance(record, PartitionChangeRecord) and record.topic_id == topic
    ]
    assert later == []
    assert all(quorum.partition(other, at).leader == 2 for at in range(3))
    sound(quorum)


def test_a_lease_that_ends_during_a_removal_begins_no_second_one() -> None:
    quorum, _ = loaded()
    start = quorum.leader.end_offset
    quorum.leader.end_lease(1)
    removal = quorum.request(UnregisterBrokerRequest(broker_id=1))
    quorum.beat_for(30_000, 2)
    assert quorum.leader.answers[removal] == Done()
    assert len(place_of(quorum, start, UnregisterBrokerRecord)) == 1
    assert place_of(quorum, start, FenceBrokerRecord) == []
    assert 1 not in quorum.image().brokers
    assert 1 not in quorum.leader.node.sessions.fencing
    sound(quorum)


def test_a_heartbeat_between_two_slices_of_a_fencing_is_answered_as_fenced() -> None:
    """From the first slice on nobody counts on the broker; when it is fenced it may come back."""
    quorum, topic = loaded()
    for _ in range(12):
        quorum.advance(1000)
        quorum.heartbeat(2)
        if 1 in quorum.leader.node.sessions.fencing:
            break
    answer = quorum.heartbeat(1)
    assert isinstance(answer, BrokerHeartbeatResponse)
    assert answer.is_fenced
    quorum.beat_for(3000, 1, 2)
    assert not quorum.image().brokers[1].fenced
    assert 1 not in quorum.leader.node.sessions.fencing
    assert all(quorum.partition(topic, at).leader == 2 for at in range(7))
    sound(quorum)
