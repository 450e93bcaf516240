"""What the controller makes of a replica whose log its broker says is damaged (ADR 13)."""

from __future__ import annotations

import pytest

from metaquorum.controller.partitions.elections import decide_elections
from metaquorum.controller.partitions.partition_change import Election, Target, build_change
from metaquorum.controller.partitions.rules import rules_of
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.image.directories import damaged_in, given_up_in, is_mark
from metaquorum.metadata.offline import directory_online
from metaquorum.metadata.records.types import ConfigRecord, PartitionChangeRecord, TopicRecord
from metaquorum.metadata.requests.partitions import ElectLeadersRequest
from tests.images import offline_replicas
from tests.unit.controller.node_quorum import image_of
from tests.unit.controller.test_partition_requests import (
    ELR,
    HOME,
    OTHER,
    TOPIC,
    UNCLEAN,
    assign,
    broker,
    change,
    cluster,
    codes,
    directory,
    partition,
    replace_record,
    with_directories,
)

MIN_ISR_2 = ConfigRecord(resource_type=2, resource_name="t", name="min.insync.replicas", value="2")
DAMAGED, GIVEN_UP = damaged_in(HOME), given_up_in(HOME)


def lying(
    place: bytes, *replicas: int, isr: tuple[int, ...], leader: int, elr: tuple[int, ...] = (), **more: object
) -> MetadataImage:
    """Broker 1 says that its replica lies in `place`; whoever is not in sync lives."""
    places = tuple([place if each == 1 else directory(each) for each in replicas])
    eligible = {"eligible_leader_replicas": elr} if elr else {}
    record = replace_record(partition(0, replicas, isr, leader), directories=places, **eligible)
    return cluster(with_directories(HOME, OTHER), record, **more)


def elect(image: MetadataImage, election: Election) -> PartitionChangeRecord | None:
    info = image.topics.partition(TOPIC, 0)
    assert info is not None
    return build_change(info, Target(), rules_of(image, image.brokers.is_active), election)


def test_the_ids_are_no_directorys_and_each_means_one_thing() -> None:
    ids = {damaged_in(HOME), given_up_in(HOME), damaged_in(OTHER), given_up_in(OTHER), HOME, OTHER}
    assert len(ids) == 6 and {len(each) for each in ids} == {16}
    image = lying(HOME, 1, isr=(1,), leader=1)
    for place in (damaged_in(HOME), given_up_in(HOME), given_up_in(OTHER)):
        assert is_mark(image.brokers.get(1), place) and not directory_online(image.brokers, 1, place)
    assert not is_mark(image.brokers.get(1), HOME) and not is_mark(image.brokers.get(2), damaged_in(HOME))
    assert not is_mark(None, damaged_in(HOME))


def test_a_damaged_replica_leaves_leadership_and_isr_like_one_in_a_bad_directory() -> None:
    image = lying(HOME, 1, 2, isr=(1, 2), leader=1)
    result = assign(image, (DAMAGED, 0))
    assert result.records == (change(isr=(2,), leader=2, directories=(DAMAGED, directory(2))),)
    after = lying(DAMAGED, 1, 2, isr=(2,), leader=2)
    info = after.topics.partition(TOPIC, 0)
    assert info is not None and offline_replicas(after.brokers, info) == (1,)


@pytest.mark.parametrize("place", [DAMAGED, GIVEN_UP])
def test_the_last_one_in_sync_stays_in_the_isr_and_nobody_leads(place: bytes) -> None:
    image = lying(HOME, 1, 2, isr=(1,), leader=1)
    assert assign(image, (place, 0)).records == (change(leader=-1, directories=(place, directory(2))),)
    after = lying(place, 1, 2, isr=(1,), leader=-1)
    for election in (Election.ONLINE, Election.PREFERRED):
        assert elect(after, election) is None, "no election takes what cannot serve"


def test_a_damaged_one_that_is_given_up_does_not_count_as_having_anything() -> None:
    """Whatever the way: in between it neither leads nor joins, and nothing is refused."""
    sole = lying(DAMAGED, 1, isr=(1,), leader=-1)
    assert assign(sole, (GIVEN_UP, 0)).records == (change(directories=(GIVEN_UP,)),)
    led = lying(DAMAGED, 1, 2, isr=(2,), leader=2)
    assert assign(led, (GIVEN_UP, 0)).records == (change(directories=(GIVEN_UP, directory(2))),)


def test_one_that_came_back_whole_leads_as_it_did() -> None:
    image = lying(DAMAGED, 1, 2, isr=(1,), leader=-1)
    assert assign(image, (HOME, 0)).records == (change(leader=1, directories=(HOME, directory(2))),)


@pytest.mark.parametrize("place", [GIVEN_UP, damaged_in(OTHER)])
def test_one_that_begins_anew_leads_nothing(place: bytes) -> None:
    """It was given up, or what was damaged lay in another directory."""
    image = lying(place, 1, 2, isr=(1,), leader=-1, fenced=(2,))
    result = assign(image, (HOME, 0))
    assert (codes(result), result.records) == ([ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE], ())
    assert result.response.results[0].message.startswith("broker 1 was the last in-sync replica")
    led = lying(place, 1, 2, isr=(2,), leader=2)
    assert assign(led, (HOME, 0)).records == (change(directories=(HOME, directory(2))),)


def test_an_eligible_leader_that_begins_anew_is_none_any_more() -> None:
    """KIP-966: a damaged one stays eligible, as in a bad directory, until it is made anew."""
    topic = TopicRecord(name="t", topic_id=TOPIC)

    def image(place: bytes, elr: tuple[int, ...]) -> MetadataImage:
        record = replace_record(
            partition(0, (1, 2), (2,), 2),
            directories=(place, directory(2)),
            eligible_leader_replicas=elr,
        )
        brokers = (with_directories(HOME, OTHER), broker(2), broker(3))
        return image_of(*brokers, topic, MIN_ISR_2, record, ELR, level=23)

    kept = assign(image(HOME, (1,)), (DAMAGED, 0)).records
    assert kept == (change(directories=(DAMAGED, directory(2))),)
    gone = assign(image(GIVEN_UP, (1,)), (HOME, 0)).records
    assert gone == (change(directories=(HOME, directory(2)), eligible_leader_replicas=()),)
    back = assign(image(DAMAGED, (1,)), (HOME, 0)).records
    assert back == (change(directories=(HOME, directory(2))),)


def test_an_unclean_election_takes_another_live_replica() -> None:
    request = ElectLeadersRequest(unclean=True, partitions=(("t", 0),))
    image = lying(DAMAGED, 1, 2, isr=(1,), leader=-1)
    rules = rules_of(image, image.brokers.is_active)
    expected = change(isr=(2,), leader=2, leader_recovery_state=1)
    assert decide_elections(image, request, rules, records_max=9).records == (expected,)
    alone = lying(DAMAGED, 1, isr=(1,), leader=-1)
    rules = rules_of(alone, alone.brokers.is_active)
    assert decide_elections(alone, request, rules, records_max=9).records == ()


def test_where_unclean_elections_are_allowed_another_one_leads_at_once() -> None:
    record = replace_record(partition(0, (1, 2), (1,), 1), directories=(HOME, directory(2)))
    image = cluster(with_directories(HOME), record, UNCLEAN)
    assert assign(image, (DAMAGED, 0)).records == (
        change(isr=(2,), leader=2, directories=(DAMAGED, directory(2)), leader_recovery_state=1),
    )
