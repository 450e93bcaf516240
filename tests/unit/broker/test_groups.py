"""Members of classic groups: who joins, assigns, leaves and is dropped, and what each of them hears."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from metaquorum.broker.coordinator.groups.group import DeleteGroup, DescribeGroup, ListGroups, Phase
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.node_configs import GroupConfig
from metaquorum.wire.messages import (
    ConsumerGroupHeartbeatRequest,
    GroupMetadataKey,
    JoinGroupRequest,
    OffsetCommitRequest,
    TxnOffsetCommitRequest,
)
from tests.unit.broker.group_world import CONFIG, WALL_MS, G, Groups, subscription


def test_members_join_the_leader_assigns_and_everyone_gets_its_share() -> None:
    groups = Groups()
    first, second = groups.join(), groups.join()
    assert groups.phase is Phase.PREPARING
    groups.wait(99)
    assert not groups.answers
    groups.wait(101)
    one, two = groups.answers[first], groups.answers[second]
    assert (one.generation_id, two.generation_id, one.protocol_name) == (1, 1, "range")
    assert one.leader == two.leader == one.member_id
    assert [each.member_id for each in one.members] == [one.member_id, two.member_id]
    assert two.members == ()
    waiting = groups.sync(two.member_id, 1)
    assert waiting not in groups.answers
    leader = groups.sync(one.member_id, 1, {one.member_id: b"a", two.member_id: b"b"})
    assert (groups.answers[leader].assignment, groups.answers[waiting].assignment) == (b"a", b"b")
    assert groups.phase is Phase.STABLE
    assert len(groups.records) == 1


def test_the_first_join_waits_on_while_members_come_up_to_the_rebalance_timeout() -> None:
    groups = Groups()
    for _ in range(3):
        groups.join(rebalance_ms=250)
        groups.wait(80)
    groups.wait(9)
    assert groups.phase is Phase.PREPARING, "100 ms, prolonged by 100 and by the 50 that are left"
    groups.wait(1)
    assert groups.phase is Phase.COMPLETING
    assert len(groups.answers) == 3


def test_from_version_4_a_new_member_gets_an_id_first_and_joins_with_it() -> None:
    groups = Groups()
    key = groups.join(version=4)
    answer = groups.answers[key]
    assert answer.error_code == ErrorCode.MEMBER_ID_REQUIRED
    assert answer.member_id.startswith("client-")
    joined = groups.join(answer.member_id, version=4)
    groups.wait(200)
    assert groups.answers[joined].member_id == answer.member_id
    assert not groups.group().pending


def test_an_id_that_nobody_comes_back_with_is_forgotten_and_holds_nobody_up() -> None:
    groups = Groups()
    ids = groups.stable(1)
    groups.join(version=4, session_ms=500)
    assert groups.group().pending
    groups.join(ids[0])
    groups.wait(499)
    assert groups.phase is Phase.PREPARING
    groups.wait(1)
    assert groups.phase is Phase.COMPLETING


def test_a_new_member_makes_everybody_join_again() -> None:
    groups = Groups()
    ids = groups.stable()
    third = groups.join()
    assert [groups.heartbeat(each, 1) for each in ids] == [ErrorCode.REBALANCE_IN_PROGRESS] * 2
    keys = [groups.join(each) for each in ids]
    assert {groups.answers[key].generation_id for key in (*keys, third)} == {2}
    assert groups.heartbeat(ids[0], 1) is ErrorCode.ILLEGAL_GENERATION
    assert groups.heartbeat(ids[0], 2) is ErrorCode.NONE


def test_members_that_do_not_join_again_in_time_are_left_behind() -> None:
    groups = Groups()
    first, second = groups.stable()
    key = groups.join(first)
    for _ in range(10):
        groups.wait(500)
        groups.heartbeat(second, 1)
    assert groups.answers[key].generation_id == 2
    assert list(groups.group().members) == [first]
    assert groups.heartbeat(second, 1) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_static_member_that_does_not_join_again_in_time_stays() -> None:
    groups = Groups()
    keys = [groups.join(instance=name) for name in ("a", "b")]
    groups.wait(300)
    first, second = [groups.answers[key].member_id for key in keys]
    for member_id, name in ((first, "a"), (second, "b")):
        groups.sync(member_id, 1, {first: b"x", second: b"y"}, instance=name)
    groups.join()
    key = groups.join(first, instance="a")
    for _ in range(10):
        groups.wait(500)
        groups.heartbeat(second, 1, "b")
    assert groups.answers[key].generation_id == 2
    assert second in groups.group().members


def test_a_silent_member_is_dropped_after_its_session() -> None:
    groups = Groups()
    first, _ = groups.stable()
    groups.wait(999)
    assert groups.heartbeat(first, 1) is ErrorCode.NONE
    groups.wait(1)
    assert list(groups.group().members) == [first]
    assert groups.phase is Phase.PREPARING
    groups.wait(1_000)
    assert groups.phase is Phase.EMPTY
    assert groups.again().group().members == {}


def test_a_commit_counts_as_a_sign_of_life() -> None:
    groups = Groups()
    (only,) = groups.stable(1)
    for offset in range(5):
        groups.wait(900)
        assert groups.commit(offset, member_id=only, generation=1) is ErrorCode.NONE
    assert groups.phase is Phase.STABLE


def test_a_member_that_waits_for_an_answer_is_not_silent_but_a_new_one_not_for_ever() -> None:
    groups = Groups()
    first, second = groups.stable()
    waiting = groups.join(first, rebalance_ms=400_000)
    new = groups.join(rebalance_ms=400_000)
    for _ in range(320):
        groups.wait(999)
        groups.heartbeat(second, 1)
    assert waiting not in groups.answers
    assert groups.answers[new].error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_members_that_do_not_ask_for_their_share_are_dropped() -> None:
    groups = Groups()
    keys = [groups.join(rebalance_ms=2_000) for _ in range(2)]
    groups.wait(300)
    first, second = (groups.answers[key].member_id for key in keys)
    groups.sync(first, 1, {first: b"a", second: b"b"})
    for _ in range(3):
        groups.heartbeat(first, 1)
        groups.heartbeat(second, 1)
        groups.wait(700)
    assert list(groups.group().members) == [first]
    assert groups.phase is Phase.PREPARING


def test_leaving_answers_for_each_and_the_last_one_empties_the_group() -> None:
    groups = Groups()
    first, second = groups.stable()
    assert groups.leave(first, "nobody") == [ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID]
    assert groups.leave(second) == [ErrorCode.NONE]
    assert groups.phase is Phase.EMPTY
    assert groups.group().generation == 2
    assert groups.again().group().generation == 2


def test_a_member_that_leaves_or_rebalances_gives_those_who_wait_an_answer() -> None:
    groups = Groups()
    keys = [groups.join() for _ in range(2)]
    groups.wait(300)
    first, second = (groups.answers[key].member_id for key in keys)
    waiting = groups.sync(second, 1)
    groups.join()
    assert groups.answers[waiting].error_code == ErrorCode.REBALANCE_IN_PROGRESS
    joining = groups.join(second)
    assert groups.leave(second) == [ErrorCode.NONE]
    assert groups.answers[joining].error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert first in groups.group().members


def test_who_asks_again_before_it_was_answered_is_answered_twice_in_all() -> None:
    groups = Groups()
    first, second = groups.stable()
    one = groups.join(first)
    two = groups.join(first)
    assert groups.answers[one].error_code == ErrorCode.REBALANCE_IN_PROGRESS
    groups.join(second)
    assert groups.answers[two].generation_id == 2
    three, four = groups.sync(second, 2), groups.sync(second, 2)
    assert groups.answers[three].error_code == ErrorCode.REBALANCE_IN_PROGRESS
    groups.sync(first, 2, {second: b"b"})
    assert groups.answers[four].assignment == b"b"


def test_joining_again_unchanged_gives_the_generation_and_changed_metadata_a_new_one() -> None:
    groups = Groups()
    first, second = groups.stable()
    assert groups.answers[groups.join(second)].generation_id == 1
    assert groups.phase is Phase.STABLE
    groups.join(second, protocols=(("range", subscription("other")),))
    assert groups.phase is Phase.PREPARING
    groups.join(first)
    groups.sync(first, 2, {})
    groups.sync(second, 2)
    groups.join(first)
    assert groups.phase is Phase.PREPARING, "a leader that joins again wants to assign again"


def test_the_protocol_is_one_that_all_support_and_most_prefer() -> None:
    groups = Groups()
    a, b, c = ("a", b"1"), ("b", b"2"), ("c", b"3")
    keys = [groups.join(protocols=each) for each in ((a, b), (b, a, c), (c, b, a))]
    refused = groups.join(protocols=(c,))
    other = groups.join(kind="connect")
    groups.wait(500)
    assert {groups.answers[key].protocol_name for key in keys} == {"b"}
    for key in (refused, other):
        assert groups.answers[key].error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_a_static_member_takes_its_place_again_and_its_older_self_is_fenced() -> None:
    groups = Groups()
    keys = [groups.join(instance=name, session_ms=9_000) for name in ("one", "two")]
    groups.wait(300)
    first, second = (groups.answers[key].member_id for key in keys)
    groups.sync(first, 1, {first: b"a", second: b"b"}, instance="one")
    groups.sync(second, 1, instance="two")
    answer = groups.answers[groups.join(instance="two", version=5)]
    assert (answer.error_code, answer.generation_id) == (0, 1)
    assert answer.member_id.startswith("two-")
    assert groups.phase is Phase.STABLE
    assert groups.answers[groups.sync(answer.member_id, 1, instance="two")].assignment == b"b"
    assert groups.heartbeat(second, 1, "two") is ErrorCode.FENCED_INSTANCE_ID
    assert groups.heartbeat(answer.member_id, 1, "two") is ErrorCode.NONE
    assert groups.heartbeat(answer.member_id, 1, "three") is ErrorCode.UNKNOWN_MEMBER_ID
    assert groups.again().group().static_id("two") == answer.member_id
    assert groups.leave("", instance="two") == [ErrorCode.NONE]
    assert groups.phase is Phase.PREPARING


def test_a_static_member_whose_new_id_cannot_be_stored_is_told_and_the_group_joins_again() -> None:
    """Nobody else knows the new id: a later coordinator would not."""
    groups = Groups()
    keys = [groups.join(instance=name, session_ms=9_000) for name in ("one", "two")]
    groups.wait(300)
    first, second = (groups.answers[key].member_id for key in keys)
    groups.sync(first, 1, {first: b"a", second: b"b"}, instance="one")
    stored = list(groups.records)
    key = groups.join(instance="two", version=5, refuse=ErrorCode.NOT_ENOUGH_REPLICAS)
    assert groups.answers[key].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert (groups.phase, groups.records) == (Phase.PREPARING, stored)


def test_a_static_leader_that_comes_back_is_told_not_to_assign() -> None:
    groups = Groups()
    (key,) = [groups.join(instance="one")]
    groups.wait(300)
    first = groups.answers[key].member_id
    groups.sync(first, 1, {first: b"a"}, instance="one")
    older = groups.answers[groups.join(instance="one", version=8)]
    assert (older.leader, older.members, older.skip_assignment) == (first, (), False)
    newer = groups.answers[groups.join(instance="one", version=9)]
    assert (newer.leader, newer.skip_assignment) == (newer.member_id, True)
    assert [each.member_id for each in newer.members] == [newer.member_id]


def test_a_group_that_is_full_takes_nobody_else() -> None:
    groups = Groups(GroupConfig(group_max_size=1, group_min_session_timeout_ms=10))
    first = groups.join()
    second = groups.join()
    assert groups.answers[second].error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    groups.wait(3_000)
    assert groups.answers[first].error_code == 0


def test_no_more_groups_begin_than_a_coordinator_may_hold() -> None:
    groups = Groups(replace(CONFIG, group_coordinator_max_groups=2))
    first = groups.join()
    committed = OffsetCommitRequest(
        topics=(
            OffsetCommitRequest.OffsetCommitRequestTopic(
                name="t",
                partitions=(OffsetCommitRequest.OffsetCommitRequestPartition(committed_offset=7),),
            ),
        ),
    )

    def commit(group_id: str) -> int:
        answer = groups.answers[groups.ask(msgspec.structs.replace(committed, group_id=group_id))]
        return int(answer.topics[0].partitions[0].error_code)

    assert commit("second") == 0
    full = ErrorCode.GROUP_MAX_SIZE_REACHED
    assert commit("third") == full and commit("second") == 0
    join = JoinGroupRequest(group_id="third", session_timeout_ms=CONFIG.group_min_session_timeout_ms)
    assert groups.answers[groups.ask(join)].error_code == full
    beat = ConsumerGroupHeartbeatRequest(group_id="third", member_id="m", subscribed_topic_names=("t",))
    refused = groups.answers[groups.ask(beat, version=0)]
    assert refused.error_code == full and "group.coordinator.max.groups" in refused.error_message
    topic, part = (
        TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic,
        (TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(committed_offset=7)),
    )
    in_transaction = TxnOffsetCommitRequest(group_id="third", topics=(topic(name="t", partitions=(part,)),))
    assert groups.answers[groups.ask(in_transaction)] == (full,)
    assert set(groups.state.groups) == {G, "second"} and not groups.state.consumers.groups
    # Those that are there go on.
    second_member = groups.join()
    groups.wait(3_000)
    assert [groups.answers[key].error_code for key in (first, second_member)] == [0, 0]


def test_session_timeouts_have_bounds_and_strangers_are_refused() -> None:
    groups = Groups()
    assert groups.answers[groups.join(session_ms=9)].error_code == ErrorCode.INVALID_SESSION_TIMEOUT
    assert groups.answers[groups.join(session_ms=2**31 - 1)].error_code == ErrorCode.INVALID_SESSION_TIMEOUT
    assert groups.answers[groups.join("x")].error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert groups.heartbeat("x", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert groups.answers[groups.sync("x", 1)].error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert groups.leave("x") == [ErrorCode.UNKNOWN_MEMBER_ID]


def test_an_assignment_that_is_too_large_for_the_log_is_taken_back() -> None:
    groups = Groups()
    keys = [groups.join() for _ in range(2)]
    groups.wait(300)
    first, second = (groups.answers[key].member_id for key in keys)
    waiting = groups.sync(second, 1)
    leader = groups.sync(first, 1, {first: b"a"}, refuse=ErrorCode.MESSAGE_TOO_LARGE)
    assert {groups.answers[key].error_code for key in (leader, waiting)} == {ErrorCode.UNKNOWN_SERVER_ERROR}
    assert groups.phase is Phase.PREPARING
    assert groups.records == []


def test_another_broker_finds_the_group_and_its_members_have_their_session_to_be_heard() -> None:
    groups = Groups()
    first, second = groups.stable()
    other = groups.again()
    assert other.group() == groups.group()
    assert other.heartbeat(first, 1) is ErrorCode.NONE
    assert other.answers[other.sync(second, 1)].assignment == b"share of " + second.encode()
    other.wait(999)
    assert other.phase is Phase.STABLE
    other.wait(1)
    assert other.phase is not Phase.STABLE


def test_groups_are_listed_described_and_deleted() -> None:
    groups = Groups()
    first, _ = groups.stable()
    groups.commit(5, group_id="simple")

    def listed(**asked: frozenset[str]) -> list[tuple[str, str, str]]:
        found = groups.answers[groups.ask(ListGroups(**asked))]
        return [(each.group_id, each.protocol_type, each.group_state) for each in found]

    assert listed() == [(G, "consumer", "Stable"), ("simple", "", "Empty")]
    assert listed(states=frozenset({"empty"})) == [("simple", "", "Empty")]
    assert listed(types=frozenset({"consumer"})) == []
    described = groups.answers[groups.ask(DescribeGroup(group_id=G))]
    assert (described.group_state, described.protocol_data) == ("Stable", "range")
    assert described.members[0].member_metadata == subscription("t")
    assert described.members[0].member_assignment == b"share of " + first.encode()
    assert described.members[0].client_host == "/h"
    assert groups.answers[groups.ask(DescribeGroup(group_id="none"))].group_state == "Dead"
    assert groups.answers[groups.ask(DeleteGroup(group_id=G))] is ErrorCode.NON_EMPTY_GROUP
    assert groups.answers[groups.ask(DeleteGroup(group_id="none"))] is ErrorCode.GROUP_ID_NOT_FOUND
    assert groups.answers[groups.ask(DeleteGroup(group_id="simple"))] is ErrorCode.NONE
    assert list(groups.again().state.groups) == [G]


def test_records_say_when_the_state_began_and_are_what_kafka_writes() -> None:
    groups = Groups()
    first, second = groups.stable()
    record = groups.records[0]
    assert record.key == GroupMetadataKey(group=G)
    assert (record.key_version, record.value_version) == (2, 3)
    assert record.value.current_state_timestamp == WALL_MS + groups.now_ms
    assert [each.member_id for each in record.value.members] == [first, second]
    assert {each.session_timeout for each in record.value.members} == {1_000}


def test_a_group_over_its_bound_when_it_is_read_rebalances() -> None:
    groups = Groups()
    groups.stable()
    smaller = GroupConfig(group_max_size=1, group_min_session_timeout_ms=CONFIG.group_min_session_timeout_ms)
    assert Groups(smaller, groups.records).phase is Phase.PREPARING
