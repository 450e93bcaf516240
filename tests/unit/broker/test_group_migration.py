"""A group whose members change their protocol one by one: what each hears, what is stored, and who may."""

from __future__ import annotations

from typing import Any

import pytest

from metaquorum.broker.coordinator.groups.group import DescribeConsumerGroup, Phase
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.node_configs import GroupConfig, MigrationPolicy
from metaquorum.wire.embedded import assigned_partitions, encode_assignment
from metaquorum.wire.messages import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupMemberMetadataKey,
    GroupMetadataKey,
)
from tests.properties.test_consumer_group_laws import TOPICS, image_of
from tests.unit.broker.group_world import G, Groups, subscription
from tests.unit.broker.test_consumer_groups import beat, count

BOTH = MigrationPolicy.BIDIRECTIONAL


def config(policy: MigrationPolicy = BOTH, **values: Any) -> GroupConfig:
    return GroupConfig(
        group_consumer_session_timeout_ms=1_000,
        group_min_session_timeout_ms=10,
        group_initial_rebalance_delay_ms=100,
        group_consumer_migration_policy=policy,
        **values,
    )


def new_groups(policy: MigrationPolicy = BOTH, **values: Any) -> Groups:
    groups = Groups(config(policy, **values))
    groups.publish(image_of(TOPICS), MetadataImage())
    return groups


def classic(groups: Groups, **fields: Any) -> str:
    """A classic group of one member that has all of `t`."""
    key = groups.join(**fields)
    groups.wait(200)
    joined = groups.answers[key]
    mine = encode_assignment({"t": range(5)}, 1)
    groups.sync(joined.member_id, joined.generation_id, {joined.member_id: mine}, **_instance(fields))
    assert groups.phase is Phase.STABLE
    return str(joined.member_id)


def _instance(fields: dict[str, Any]) -> dict[str, Any]:
    return {"instance": fields["instance"]} if "instance" in fields else {}


def rejoin(groups: Groups, member_id: str, *owned: int, **fields: Any) -> tuple[int, list[int]]:
    """The generation and the assignment of a classic member in a group of the new protocol."""
    metadata = subscription("t", owned={"t": owned})
    joined = groups.answers[groups.join(member_id, protocols=(("range", metadata),), **fields)]
    assert joined.error_code == ErrorCode.NONE
    assert (joined.protocol_name, joined.leader, joined.members) == ("range", "", ())
    generation, member_id = joined.generation_id, joined.member_id
    synced = groups.answers[groups.sync(member_id, generation, **_instance(fields))]
    assert synced.error_code == ErrorCode.NONE
    found = assigned_partitions(synced.assignment)
    assert found is not None
    return generation, [index for _, index in found[0]]


def test_a_classic_group_is_converted_and_its_member_gives_up_its_share() -> None:
    groups = new_groups()
    old = classic(groups)
    groups.commit(5, member_id=old, generation=1)
    before = len(groups.records)
    answer = beat(groups, "a")
    assert (answer.error_code, answer.member_epoch, count(answer)) == (0, 2, 0)
    first, *rest = groups.records[before:]
    assert (first.key, first.value) == (GroupMetadataKey(group=G), None)
    stored = next(r.value for r in rest if r.key == ConsumerGroupMemberMetadataKey(group_id=G, member_id=old))
    assert stored.classic_member_metadata.session_timeout_ms == 1_000
    assert groups.heartbeat(old, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    synced = groups.answers[groups.sync(old, 1)]
    assert synced.error_code == ErrorCode.REBALANCE_IN_PROGRESS
    generation, kept = rejoin(groups, old, 0, 1, 2, 3, 4)
    assert (generation, len(kept)) == (1, 3), "not before it has given up the rest"
    assert groups.heartbeat(old, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    assert rejoin(groups, old, *kept) == (2, kept)
    assert groups.heartbeat(old, 2) is ErrorCode.NONE
    assert count(beat(groups, "a", 2)) == 2
    assert groups.commit(6, member_id=old, generation=1) is ErrorCode.ILLEGAL_GENERATION
    assert groups.commit(6, member_id=old, generation=2) is ErrorCode.NONE
    described = groups.answers[groups.ask(DescribeConsumerGroup(group_id=G))]
    assert sorted(each.member_type for each in described.members) == [0, 1]
    assert groups.again().state.consumers.groups == groups.state.consumers.groups


def test_members_that_wait_in_a_classic_group_are_told_to_join_again() -> None:
    groups = new_groups()
    first = groups.join()
    groups.wait(200)
    leader = groups.answers[first].member_id
    groups.join(leader)
    other = groups.join()
    assert groups.phase is Phase.PREPARING
    assert beat(groups, "a").error_code == 0
    told = groups.answers[other]
    assert (told.error_code, bool(told.member_id)) == (ErrorCode.REBALANCE_IN_PROGRESS, True)
    assert G not in groups.state.groups


def test_when_the_last_member_of_the_new_protocol_goes_all_join_a_classic_group() -> None:
    groups = new_groups()
    old = classic(groups)
    epoch = beat(groups, "a").member_epoch
    _, kept = rejoin(groups, old, 0, 1, 2, 3, 4)
    generation, kept = rejoin(groups, old, *kept)
    groups.commit(9, member_id=old, generation=generation)
    beat(groups, "a", -1)
    assert groups.state.consumers.groups == {}
    for read in (groups.again(), groups):
        read.wait(0)
        assert (read.phase, read.group().generation) == (Phase.PREPARING, epoch)
        assert read.heartbeat(old, epoch) is ErrorCode.REBALANCE_IN_PROGRESS
        assert read.commit(9, member_id=old, generation=epoch) is ErrorCode.NONE
        joined = read.answers[read.join(old)]
        assert (joined.generation_id, joined.leader) == (epoch + 1, old)


@pytest.mark.parametrize("silent", [True, False])
def test_a_downgraded_group_drops_who_does_not_join_again(silent: bool) -> None:
    groups = new_groups()
    old = classic(groups)
    beat(groups, "a")
    rejoin(groups, old)
    beat(groups, "a", -1)
    for _ in range(11):
        groups.wait(500)
        if not silent:
            groups.heartbeat(old, 2)
    assert groups.phase is Phase.EMPTY


@pytest.mark.parametrize(
    ("policy", "upgrades", "downgrades"),
    [
        (MigrationPolicy.DISABLED, False, False),
        (MigrationPolicy.UPGRADE, True, False),
        (MigrationPolicy.DOWNGRADE, False, True),
    ],
)
def test_the_policy_says_which_way_groups_with_members_may_go(
    policy: MigrationPolicy, upgrades: bool, downgrades: bool
) -> None:
    groups = new_groups(policy)
    classic(groups)
    answer = beat(groups, "a")
    assert (answer.error_code == 0) == upgrades
    assert upgrades or "group.consumer.migration.policy" in (answer.error_message or "")
    groups = new_groups(policy)
    beat(groups, "a")
    generation, _ = rejoin(groups, "")
    assert groups.state.consumers.groups[G].epoch == generation, "classic members always may join"
    beat(groups, "a", -1)
    assert (G in groups.state.groups) == downgrades


@pytest.mark.parametrize(
    ("fields", "limits"),
    [
        ({"kind": "connect"}, {}),
        ({"protocols": (("range", b"\0"),)}, {}),
        ({}, {"group_consumer_max_size": 1}),
    ],
)
def test_groups_that_cannot_be_converted_stay_as_they_are(
    fields: dict[str, Any], limits: dict[str, int]
) -> None:
    groups = new_groups(**limits)
    member = classic(groups, **fields)
    stored = len(groups.records)
    assert beat(groups, "a").error_code in {ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.GROUP_MAX_SIZE_REACHED}
    assert beat(groups, "a", 3).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert len(groups.records) == stored
    assert groups.heartbeat(member, 1) is ErrorCode.NONE


def test_an_upgrade_that_the_log_refuses_leaves_the_classic_group_and_who_waits_in_it() -> None:
    groups = new_groups()
    member = classic(groups)
    other = groups.join()
    body = ConsumerGroupHeartbeatRequest(
        group_id=G,
        member_id="a",
        rebalance_timeout_ms=500,
        subscribed_topic_names=("t",),
        topic_partitions=(),
    )
    key = groups.ask(body, version=1, refuse=ErrorCode.NOT_ENOUGH_REPLICAS)
    assert isinstance(groups.answers[key], ApiError)
    assert other not in groups.answers
    groups.join(member)
    assert groups.answers[other].error_code == ErrorCode.NONE


def test_classic_members_that_cannot_be_who_they_say_are_refused() -> None:
    groups = new_groups(group_consumer_max_size=3)
    beat(groups, "a")
    generation, _ = rejoin(groups, "")
    static, _ = rejoin(groups, "", instance="one")
    members = groups.state.consumers.groups[G].members
    one = next(each.member_id for each in members.values() if each.instance_id == "one")
    plain = next(each.member_id for each in members.values() if each.classic and each.instance_id is None)
    assert groups.heartbeat("a", generation) is ErrorCode.UNKNOWN_MEMBER_ID, "it speaks the new protocol"
    assert groups.heartbeat("x", static, instance="one") is ErrorCode.FENCED_INSTANCE_ID
    assert groups.heartbeat(one, static, instance="two") is ErrorCode.UNKNOWN_MEMBER_ID
    assert groups.heartbeat(one, static + 1, instance="one") is ErrorCode.ILLEGAL_GENERATION
    assert groups.answers[groups.join()].error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    for fields in (
        {"protocols": (("sticky", subscription("t")),)},
        {"kind": "connect"},
        {"protocols": (("range", b""),)},
    ):
        answer = groups.answers[groups.join(plain, **fields)]
        assert answer.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert groups.leave("a", plain) == [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.NONE]
    assert groups.leave("", instance="one") == [ErrorCode.NONE]
    assert list(groups.state.consumers.groups[G].members) == ["a"]
    required = groups.answers[groups.join(version=4)]
    assert (required.error_code, bool(required.member_id)) == (ErrorCode.MEMBER_ID_REQUIRED, True)


def test_static_members_are_replaced_over_protocols_and_keep_what_they_had() -> None:
    groups = new_groups()
    old = classic(groups, instance="one")
    answer = beat(groups, "a", instance_id="one")
    assert (answer.error_code, count(answer)) == (0, 5)
    assert list(groups.state.consumers.groups[G].members) == ["a"]
    assert groups.heartbeat(old, 1, instance="one") is ErrorCode.FENCED_INSTANCE_ID
    generation, parts = rejoin(groups, "", instance="one")
    assert (generation, parts) == (answer.member_epoch, [0, 1, 2, 3, 4])
    assert beat(groups, "a", answer.member_epoch).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    groups.wait(0)
    assert groups.phase is Phase.PREPARING, "only a classic member is left"


def test_a_classic_member_that_does_not_join_again_or_ask_for_its_assignment_is_thrown_out() -> None:
    for joins in (False, True):
        groups = new_groups()
        old = classic(groups)
        epoch = beat(groups, "a").member_epoch
        if joins:
            groups.join(old, session_ms=60_000, rebalance_ms=5_000)
        for _ in range(12):
            groups.heartbeat(old, epoch if joins else 1)
            groups.wait(450)
            beat(groups, "a", epoch)
        assert list(groups.state.consumers.groups[G].members) == ["a"]


def test_classic_members_hear_of_more_partitions() -> None:
    groups = new_groups(MigrationPolicy.UPGRADE)
    beat(groups, "a")
    generation, _ = rejoin(groups, "")
    beat(groups, "a", -1)
    (old,) = groups.state.consumers.groups[G].members
    generation, parts = rejoin(groups, old)
    assert len(parts) == 5
    assert groups.heartbeat(old, generation) is ErrorCode.NONE
    groups.publish(image_of({"t": (TOPICS["t"][0], 7)}), image_of(TOPICS))
    assert groups.heartbeat(old, generation) is ErrorCode.REBALANCE_IN_PROGRESS
    assert len(rejoin(groups, old, *parts)[1]) == 7
