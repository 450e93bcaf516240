"""What a group keeps from one generation to the next, and what members of a former one may not do."""

from __future__ import annotations

import pytest

from metaquorum.broker.coordinator.groups.group import Phase
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.image import MetadataImage
from metaquorum.wire.messages import TxnOffsetCommitRequest
from tests.properties.test_consumer_group_laws import CONFIG, TOPICS, Consumer, image_of
from tests.unit.broker.group_world import G, Groups

T = TOPICS["t"][0]


@pytest.fixture
def second() -> tuple[Groups, str, int]:
    """A group in its second generation, its only member, and that generation."""
    groups = Groups()
    one, two = groups.stable()
    first = groups.group().generation
    groups.leave(two)
    groups.join(one)
    groups.wait(10)
    groups.sync(one, first + 1, {one: b"all"})
    return groups, one, first + 1


def in_transaction(groups: Groups, member_id: str, generation: int) -> ErrorCode:
    """What a member hears that commits an offset within a transaction."""
    kinds = TxnOffsetCommitRequest
    part = kinds.TxnOffsetCommitRequestPartition(committed_offset=5)
    body = kinds(
        transactional_id="t",
        group_id=G,
        producer_id=7,
        producer_epoch=0,
        generation_id=generation,
        member_id=member_id,
        topics=(kinds.TxnOffsetCommitRequestTopic(name="t", partitions=(part,)),),
    )
    (code,) = groups.answers[groups.ask(body)]
    return ErrorCode(code)


def test_a_former_generation_commits_nothing(second: tuple[Groups, str, int]) -> None:
    groups, one, generation = second
    assert groups.commit(5, member_id=one, generation=generation - 1) is ErrorCode.ILLEGAL_GENERATION
    assert groups.committed() == -1
    assert groups.commit(5, member_id=one, generation=generation) is ErrorCode.NONE


def test_a_former_generation_commits_nothing_in_a_transaction(second: tuple[Groups, str, int]) -> None:
    groups, one, generation = second
    assert in_transaction(groups, one, generation - 1) is ErrorCode.ILLEGAL_GENERATION
    assert in_transaction(groups, one, generation) is ErrorCode.NONE


def test_an_assignment_is_kept_for_who_asks_again(second: tuple[Groups, str, int]) -> None:
    groups, one, generation = second
    assert groups.answers[groups.sync(one, generation)].assignment == b"all"
    assert groups.again().group().members[one].assignment == b"all"


def test_members_that_a_new_coordinator_does_not_hear_are_dropped(second: tuple[Groups, str, int]) -> None:
    again = second[0].again()
    assert again.phase is Phase.STABLE
    again.wait(20_000)
    assert again.phase is Phase.EMPTY


@pytest.fixture
def consumers() -> tuple[Groups, Consumer, Consumer]:
    """A group of KIP-848 with one member that has everything, and one that is about to come."""
    groups = Groups(CONFIG)
    groups.publish(image_of(TOPICS), MetadataImage())
    one, two = Consumer("one", groups), Consumer("two", groups)
    one.heartbeat()
    assert one.owns == {(T, index) for index in range(5)}
    return groups, one, two


def test_nothing_is_given_away_that_is_still_being_revoked(
    consumers: tuple[Groups, Consumer, Consumer],
) -> None:
    _, one, two = consumers
    two.heartbeat()
    one.heartbeat(is_lost=True)  # it is told what to give up, and does not hear it
    two.heartbeat()
    assert two.owns == set()
    one.heartbeat()
    one.heartbeat()
    two.heartbeat()
    assert len(two.owns) >= 2 and not one.owns & two.owns


def test_what_a_member_leaves_behind_goes_to_the_others(consumers: tuple[Groups, Consumer, Consumer]) -> None:
    _, one, two = consumers
    for member in (two, one, one, two):
        member.heartbeat()
    one.heartbeat(epoch=-1)
    two.heartbeat()
    assert two.owns == {(T, index) for index in range(5)}


def test_a_former_member_epoch_commits_nothing(consumers: tuple[Groups, Consumer, Consumer]) -> None:
    groups, one, two = consumers
    before = one.epoch
    for member in (two, one, one):
        member.heartbeat()
    assert one.epoch == before + 1
    refused = groups.commit(5, member_id="one", generation=before)
    assert refused is ErrorCode.STALE_MEMBER_EPOCH
    assert groups.commit(5, member_id="one", generation=one.epoch) is ErrorCode.NONE


def test_a_former_member_epoch_in_a_transaction_is_a_former_generation_to_producers(
    consumers: tuple[Groups, Consumer, Consumer],
) -> None:
    groups, one, _ = consumers
    # They abort and go on after ILLEGAL_GENERATION; after STALE_MEMBER_EPOCH Java's must be closed.
    assert in_transaction(groups, "one", one.epoch - 1) is ErrorCode.ILLEGAL_GENERATION
    assert in_transaction(groups, "gone", one.epoch) is ErrorCode.UNKNOWN_MEMBER_ID
    assert in_transaction(groups, "one", one.epoch) is ErrorCode.NONE
