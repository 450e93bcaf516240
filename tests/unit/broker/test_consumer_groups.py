"""Members of the new protocol (KIP-848): errors, static members, silence, and a change of protocol."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from metaquorum.broker.coordinator.groups.group import DeleteGroup, DescribeConsumerGroup, ListGroups
from metaquorum.broker.coordinator.shard import RETRY_MS
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.image import GROUP_RESOURCE, ConfigResource, MetadataImage
from metaquorum.metadata.node_configs import GroupConfig
from metaquorum.wire.messages import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse
from tests.properties.test_consumer_group_laws import TOPICS, image_of
from tests.unit.broker.group_world import G, Groups

CONFIG = GroupConfig(
    group_consumer_session_timeout_ms=1_000,
    group_consumer_max_size=2,
    group_min_session_timeout_ms=10,
    group_initial_rebalance_delay_ms=100,
)


def new_groups() -> Groups:
    groups = Groups(CONFIG)
    groups.publish(image_of(TOPICS), MetadataImage())
    return groups


def beat(
    groups: Groups, member_id: str, epoch: int = 0, *, version: int = 1, **fields: Any
) -> ConsumerGroupHeartbeatResponse:
    values: dict[str, Any] = {"group_id": G, "member_id": member_id, "member_epoch": epoch}
    if epoch == 0:
        values |= {
            "rebalance_timeout_ms": 500,
            "subscribed_topic_names": ("t",),
            "topic_partitions": (),
        }
    key = groups.ask(ConsumerGroupHeartbeatRequest(**(values | fields)), version=version)
    answer: ConsumerGroupHeartbeatResponse = groups.answers[key]
    return answer


def count(answer: ConsumerGroupHeartbeatResponse) -> int:
    assert answer.assignment is not None
    return sum(len(each.partitions) for each in answer.assignment.topic_partitions)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"epoch": -3}, ErrorCode.INVALID_REQUEST),
        ({"member_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"instance_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"rack_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"epoch": -2}, ErrorCode.INVALID_REQUEST),
        ({"rebalance_timeout_ms": -1}, ErrorCode.INVALID_REQUEST),
        ({"topic_partitions": None}, ErrorCode.INVALID_REQUEST),
        ({"subscribed_topic_names": None}, ErrorCode.INVALID_REQUEST),
        ({"subscribed_topic_regex": "t("}, ErrorCode.INVALID_REGULAR_EXPRESSION),
        ({"subscribed_topic_regex": "(?=t)"}, ErrorCode.INVALID_REGULAR_EXPRESSION),
        ({"subscribed_topic_regex": "(x{1000}){1000}"}, ErrorCode.INVALID_REGULAR_EXPRESSION),
        ({"server_assignor": "sticky"}, ErrorCode.UNSUPPORTED_ASSIGNOR),
        ({"epoch": 5}, ErrorCode.GROUP_ID_NOT_FOUND),
    ],
)
def test_requests_that_cannot_be_right_are_refused_and_store_nothing(
    fields: dict[str, Any], error: ErrorCode
) -> None:
    groups = new_groups()
    assert beat(groups, **({"member_id": "m"} | fields)).error_code == error
    assert groups.records == []


def test_before_version_1_the_coordinator_makes_the_id() -> None:
    groups = new_groups()
    answer = beat(groups, "", version=0)
    assert answer.error_code == 0
    assert answer.member_id
    assert count(answer) == 5


def test_epochs_of_strangers_and_of_the_past_are_fenced() -> None:
    groups = new_groups()
    epoch = beat(groups, "a").member_epoch
    assert beat(groups, "b", 1).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert beat(groups, "a", epoch + 1).error_code == ErrorCode.FENCED_MEMBER_EPOCH
    assert beat(groups, "a", epoch).error_code == 0
    assert beat(groups, "a", epoch).assignment is None
    assert beat(groups, "a").member_epoch == epoch, "a member may begin again"


def test_a_partition_goes_to_another_member_when_it_is_given_up() -> None:
    groups = new_groups()
    epoch = beat(groups, "a").member_epoch
    second = beat(groups, "b")
    assert count(second) == 0
    kept = beat(groups, "a", epoch)
    assert count(kept) == 3
    assert kept.member_epoch == epoch, "not before it has given up the rest"
    assert kept.assignment is not None
    assert beat(groups, "b", second.member_epoch).assignment is None
    done = beat(groups, "a", epoch, topic_partitions=kept.assignment.topic_partitions)
    assert done.member_epoch == second.member_epoch
    assert count(beat(groups, "b", second.member_epoch)) == 2
    assert beat(groups, "c").error_code == ErrorCode.GROUP_MAX_SIZE_REACHED


def test_a_full_coordinator_takes_members_of_the_group_that_it_has_in_either_protocol() -> None:
    groups = Groups(replace(CONFIG, group_coordinator_max_groups=1))
    groups.publish(image_of(TOPICS), MetadataImage())
    for member_id in ("a", "b"):
        assert beat(groups, member_id).error_code == ErrorCode.NONE
    for member_id in ("a", "b"):
        assert beat(groups, member_id, -1).error_code == ErrorCode.NONE
    key = groups.join()
    groups.wait(3_000)
    assert groups.answers[key].error_code == ErrorCode.NONE


def test_who_gives_nothing_up_in_time_and_who_is_silent_is_thrown_out() -> None:
    groups = new_groups()
    epoch = beat(groups, "a").member_epoch
    second = beat(groups, "b").member_epoch
    beat(groups, "a", epoch)
    groups.wait(499)
    beat(groups, "a", epoch)
    groups.wait(1)
    assert beat(groups, "a", epoch).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert count(beat(groups, "b", second)) == 5
    groups.wait(1_000)
    assert groups.state.consumers.groups[G].members == {}
    assert groups.again().state.consumers.groups[G].members == {}


def test_who_was_silent_is_thrown_out_later_where_the_log_refuses_it_at_first() -> None:
    groups = new_groups()
    beat(groups, "a")
    groups.wait(1_000 + RETRY_MS - 1, refuse=ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert list(groups.state.consumers.groups[G].members) == ["a"]
    groups.wait(1)
    assert groups.state.consumers.groups[G].members == {}


def test_a_static_member_comes_back_under_another_id_to_what_it_had() -> None:
    groups = new_groups()
    epoch = beat(groups, "a", instance_id="one").member_epoch
    assert beat(groups, "b", instance_id="one").error_code == ErrorCode.UNRELEASED_INSTANCE_ID
    assert beat(groups, "b", epoch, instance_id="one").error_code == ErrorCode.FENCED_INSTANCE_ID
    assert beat(groups, "a", -2, instance_id="one").member_epoch == -2
    answer = beat(groups, "b", instance_id="one")
    assert (answer.error_code, answer.member_epoch, count(answer)) == (0, epoch, 5)
    assert list(groups.state.consumers.groups[G].members) == ["b"]
    assert beat(groups, "b", -1, instance_id="one").member_epoch == -1
    assert beat(groups, "b", -1).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_commits_need_the_members_epoch() -> None:
    groups = new_groups()
    epoch = beat(groups, "a").member_epoch
    assert groups.commit(5, member_id="a", generation=epoch) is ErrorCode.NONE
    assert groups.commit(6, member_id="a", generation=epoch + 1) is ErrorCode.STALE_MEMBER_EPOCH
    assert groups.commit(6, member_id="x", generation=epoch) is ErrorCode.UNKNOWN_MEMBER_ID
    assert groups.commit(6) is ErrorCode.UNKNOWN_MEMBER_ID
    assert groups.committed() == 5
    assert G not in groups.state.groups


def test_groups_of_both_protocols_are_listed_described_and_deleted() -> None:
    groups = new_groups()
    epoch = beat(groups, "a").member_epoch
    groups.commit(1, group_id="simple")
    listed = groups.answers[groups.ask(ListGroups())]
    assert {(each.group_id, each.group_type) for each in listed} == {("simple", "classic"), (G, "consumer")}
    only = groups.answers[groups.ask(ListGroups(types=frozenset({"consumer"}), states=frozenset({"stable"})))]
    assert [each.group_id for each in only] == [G]
    described = groups.answers[groups.ask(DescribeConsumerGroup(group_id=G))]
    assert (described.group_state, described.group_epoch, described.assignor_name) == (
        "Stable",
        epoch,
        "uniform",
    )
    (member,) = described.members
    assert member.assignment == member.target_assignment
    assert [each.topic_name for each in member.assignment.topic_partitions] == ["t"]
    missing = groups.answers[groups.ask(DescribeConsumerGroup(group_id="none"))]
    assert missing.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert groups.answers[groups.ask(DeleteGroup(group_id=G))] is ErrorCode.NON_EMPTY_GROUP
    beat(groups, "a", -1)
    assert groups.answers[groups.ask(DeleteGroup(group_id=G))] is ErrorCode.NONE
    assert groups.again().state.consumers.groups == {}


def test_a_group_without_members_may_change_its_protocol_and_keeps_its_offsets() -> None:
    groups = new_groups()
    (only,) = groups.stable(1)
    groups.commit(5, member_id=only, generation=1)
    assert beat(groups, "a").error_code == ErrorCode.GROUP_ID_NOT_FOUND
    groups.leave(only)
    assert count(beat(groups, "a")) == 5
    beat(groups, "a", -1)
    groups.stable(1)
    assert groups.committed() == 5
    assert groups.again().state.consumers.groups == {}


def test_more_partitions_are_assigned_at_the_next_heartbeat() -> None:
    groups = new_groups()
    epoch = beat(groups, "a").member_epoch
    groups.publish(image_of({"t": (TOPICS["t"][0], 7)}), image_of(TOPICS))
    answer = beat(groups, "a", epoch)
    assert answer.member_epoch == epoch + 1
    assert count(answer) == 7


def test_what_is_set_on_a_group_holds_from_the_next_heartbeat_on() -> None:
    groups, image = new_groups(), image_of(TOPICS)
    usual = beat(groups, "m")
    assert usual.heartbeat_interval_ms == CONFIG.group_consumer_heartbeat_interval_ms
    configs = image.configs.builder()
    own = {"consumer.session.timeout.ms": "2000", "consumer.heartbeat.interval.ms": "70"}
    configs.put(ConfigResource(GROUP_RESOURCE, G), own)
    configs.put(ConfigResource(GROUP_RESOURCE, "other"), {"consumer.heartbeat.interval.ms": "80"})
    groups.publish(replace(image, configs=configs.freeze()), image)
    changed = beat(groups, "m", usual.member_epoch)
    assert changed.heartbeat_interval_ms == 70
    groups.wait(1_999)
    assert groups.state.consumers.groups[G].members
    groups.wait(1)
    assert not groups.state.consumers.groups[G].members
