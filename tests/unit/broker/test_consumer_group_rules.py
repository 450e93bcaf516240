"""The parts of KIP-848's groups by themselves: the assignors, a member's next step, what records say."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from metaquorum.broker.coordinator.groups.consumer.assignors import (
    Parts,
    Subscriber,
    assign_range,
    assign_uniform,
)
from metaquorum.broker.coordinator.groups.consumer.group import (
    ConsumerGroup,
    ConsumerMember,
    MemberState,
    assignment_record,
    group_tombstones,
    member_record,
    member_tombstones,
    target_record,
)
from metaquorum.broker.coordinator.groups.consumer.groups import reconciled
from metaquorum.broker.coordinator.groups.group import ListGroups
from metaquorum.metadata.errors import ErrorCode
from metaquorum.wire.messages import (
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupPartitionMetadataValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
)
from metaquorum.wire.stored import StoredRecord
from tests.unit.broker.group_world import Groups

T, U, W = b"t" * 16, b"u" * 16, b"w" * 16
STABLE, UNREVOKED, UNRELEASED = MemberState


def parts(text: str) -> dict[bytes, frozenset[int]]:
    """Of `t012 u3`: partitions 0, 1 and 2 of T and 3 of U."""
    names = {"t": T, "u": U, "w": W}
    return {names[each[0]]: frozenset(map(int, each[1:])) for each in text.split()}


def subscriber(name: str, topics: str, has: str = "", instance: str | None = None) -> Subscriber:
    chosen = frozenset({"t": T, "u": U, "w": W}[each] for each in topics)
    return Subscriber(member_id=name, instance_id=instance, topics=chosen, has=parts(has))


# ---- assignors ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("subscribers", "counts", "expected"),
    [
        ([("a", "t"), ("b", "t")], {T: 5}, ["t012", "t34"]),
        ([("b", "t"), ("a", "t")], {T: 5}, ["t34", "t012"]),
        ([("a", "t"), ("b", "t"), ("c", "t")], {T: 2}, ["t0", "t1", ""]),
        ([("a", "tu"), ("b", "u")], {T: 2, U: 3}, ["t01 u01", "u2"]),
        ([("a", "t"), ("b", "u")], {T: 2, U: 1, W: 9}, ["t01", "u0"]),
        ([("b", "t", "", "1"), ("a", "t", "", "2")], {T: 3}, ["t01", "t2"]),
        ([("a", "t"), ("b", "t", "", "z")], {T: 3}, ["t2", "t01"]),
        ([("a", "t", "t12"), ("b", "t", "t0")], {T: 2}, ["t0", "t1"]),
        ([], {T: 2}, []),
    ],
)
def test_range(subscribers: list[tuple[str, ...]], counts: dict[bytes, int], expected: list[str]) -> None:
    members = tuple(subscriber(*each) for each in subscribers)
    given = assign_range(members, counts)
    assert [given[each.member_id] for each in members] == [parts(each) for each in expected]


@pytest.mark.parametrize(
    ("subscribers", "counts", "expected"),
    [
        ([("a", "t"), ("b", "t")], {T: 5}, ["t024", "t13"]),
        ([("a", "t", "t34"), ("b", "t", "t01")], {T: 5}, ["t234", "t01"]),
        ([("a", "t", "t01234"), ("b", "t")], {T: 5}, ["t234", "t01"]),
        ([("a", "t", "t0123"), ("b", "t")], {T: 4}, ["t23", "t01"]),
        ([("a", "t", "t01"), ("b", "t", "t2")], {T: 3}, ["t01", "t2"]),
        ([("a", "t", "t01"), ("b", "t", "t1")], {T: 2}, ["t1", "t0"]),
        ([("a", "t", "t5"), ("b", "t")], {T: 2}, ["t0", "t1"]),
        ([("a", "t", "t2"), ("b", "t")], {T: 2}, ["t0", "t1"]),
        ([("a", "t", "u0"), ("b", "u", "t0")], {T: 1, U: 1}, ["t0", "u0"]),
        ([("a", "tu", "t0123"), ("b", "u"), ("c", "t")], {T: 4, U: 1}, ["t23", "u0", "t01"]),
        ([("a", "t", "t012345"), ("b", "t"), ("c", "t")], {T: 6}, ["t45", "t02", "t13"]),
        ([("a", "t", "t0123"), ("b", "u", "u0123"), ("c", "tu")], {T: 4, U: 4}, ["t23", "u123", "t01 u0"]),
        ([("a", "t"), ("b", "u")], {T: 2, W: 9}, ["t01", ""]),
    ],
)
def test_uniform(subscribers: list[tuple[str, ...]], counts: dict[bytes, int], expected: list[str]) -> None:
    members = tuple(subscriber(*each) for each in subscribers)
    given = assign_uniform(members, counts)
    assert [given[each.member_id] for each in members] == [parts(each) for each in expected]


def size(given: Parts) -> int:
    return sum(map(len, given.values()))


@pytest.mark.parametrize("seed", range(6))
def test_uniform_moves_no_more_than_it_must(seed: int) -> None:
    """With equal subscriptions: the sizes differ by one at most, and whoever had no more than its share
    keeps all of it."""
    rng = random.Random(seed)
    for _ in range(20):
        counts = {topic: rng.randrange(7) for topic in (T, U)}
        everything = [(topic, at) for topic, count in counts.items() for at in range(count)]
        names = [f"m{at}" for at in range(rng.randint(1, 4))]
        had: dict[str, dict[bytes, set[int]]] = {name: {} for name in names}
        for topic, at in everything:
            if rng.random() < 0.8:
                had[rng.choice(names)].setdefault(topic, set()).add(at)
        members = tuple(
            Subscriber(
                member_id=name,
                instance_id=None,
                topics=frozenset(counts),
                has={topic: frozenset(held) for topic, held in had[name].items()},
            )
            for name in names
        )
        given = assign_uniform(members, counts)
        sizes = [size(given[name]) for name in names]
        assert max(sizes) - min(sizes) <= 1
        assert sorted((t, at) for each in given.values() for t in each for at in each[t]) == everything
        share = len(everything) // len(names)
        for each in members:
            if size(each.has) <= share:
                assert all(held <= given[each.member_id].get(t, frozenset()) for t, held in each.has.items())
        again = tuple(
            Subscriber(member_id=one.member_id, instance_id=None, topics=one.topics, has=given[one.member_id])
            for one in members
        )
        assert assign_uniform(again, counts) == given


# ---- one step of a member -------------------------------------------------------------------


def member(
    name: str = "a",
    *,
    epoch: int = 4,
    previous: int = 3,
    state: MemberState = STABLE,
    has: str = "",
    revoking: str = "",
) -> ConsumerMember:
    return ConsumerMember(
        member_id=name,
        epoch=epoch,
        previous_epoch=previous,
        state=state,
        assigned=parts(has),
        revoking=parts(revoking),
    )


def group_of(*members: ConsumerMember, target: str, epoch: int = 5) -> ConsumerGroup:
    return ConsumerGroup(
        group_id="g",
        epoch=epoch,
        target_epoch=epoch,
        members={each.member_id: each for each in members},
        targets={"a": parts(target)},
    )


@pytest.mark.parametrize(
    ("before", "target", "owned", "after"),
    [
        # All is as it is to be: the new epoch alone.
        (member(has="t01"), "t01", None, member(epoch=5, previous=4, has="t01")),
        (member(epoch=5, has="t01"), "t012", None, member(epoch=5, has="t01")),
        # It takes what is free.
        (member(has="t0"), "t01", "t0", member(epoch=5, previous=4, has="t01")),
        # It gives up first, and says so by not naming it any more.
        (member(has="t01"), "t0", None, member(state=UNREVOKED, has="t0", revoking="t1")),
        (member(has="t01"), "t0", "t01", member(state=UNREVOKED, has="t0", revoking="t1")),
        (member(has="t01"), "t0", "t1", member(state=UNREVOKED, has="t0", revoking="t1")),
        (member(has="t01"), "t0", "t0", member(epoch=5, previous=4, has="t0")),
        (member(has="t01"), "u0", "", member(epoch=5, previous=4, has="u0")),
        (member(has="t01"), "", "u7", member(epoch=5, previous=4)),
        (member(epoch=5, has="t01"), "t0", None, member(epoch=5, has="t01")),
        (
            member(state=UNREVOKED, has="t0", revoking="t1"),
            "t0 u0",
            None,
            member(state=UNREVOKED, has="t0", revoking="t1"),
        ),
        (
            member(state=UNREVOKED, has="t0", revoking="t1"),
            "t0 u0",
            "t01",
            member(state=UNREVOKED, has="t0", revoking="t1"),
        ),
        (
            member(state=UNREVOKED, has="t0", revoking="t1"),
            "t0 u0",
            "t0",
            member(epoch=5, previous=4, has="t0 u0"),
        ),
        # Meanwhile the target is another one: it gives up more.
        (
            member(state=UNREVOKED, has="t0", revoking="t1"),
            "u0",
            "t0",
            member(state=UNREVOKED, revoking="t0"),
        ),
        # It waits for what others have or have still to give up.
        (member(has="t0"), "t0 w0", "t0", member(epoch=5, previous=4, state=UNRELEASED, has="t0")),
        (member(has="t0"), "t0 w01", "t0", member(epoch=5, previous=4, state=UNRELEASED, has="t0")),
        (member(has="t0"), "t0 w2", "t0", member(epoch=5, previous=4, has="t0 w2")),
        (member(epoch=5, state=UNRELEASED, has="t0"), "t0 w2", None, member(epoch=5, has="t0 w2")),
        (
            member(epoch=5, state=UNRELEASED, has="t0"),
            "t0 w02",
            None,
            member(epoch=5, state=UNRELEASED, has="t0 w2"),
        ),
        (
            member(epoch=6, previous=2, state=UNRELEASED),
            "w2",
            None,
            member(epoch=5, previous=6, has="w2"),
        ),
    ],
)
@pytest.mark.parametrize("other", ["0", "z"], ids=["before", "after"])
def test_a_step_of_a_member(
    before: ConsumerMember, target: str, owned: str | None, after: ConsumerMember, other: str
) -> None:
    others = member(other, epoch=4, state=UNREVOKED, has="w0", revoking="w1")
    group = group_of(others, before, target=target)
    assert reconciled(group, before, None if owned is None else parts(owned)) == after


@pytest.mark.parametrize(
    ("members", "epoch", "target_epoch", "expected"),
    [
        ([], 5, 4, "Empty"),
        ([member(epoch=5)], 6, 5, "Assigning"),
        ([member(epoch=5)], 5, 5, "Stable"),
        ([member(epoch=4)], 5, 5, "Reconciling"),
        ([member(epoch=5, state=UNRELEASED)], 5, 5, "Reconciling"),
        ([member(epoch=5), member("b", epoch=4, state=UNREVOKED)], 5, 5, "Reconciling"),
        ([member(epoch=4), member("b", epoch=5)], 5, 5, "Reconciling"),
    ],
)
def test_what_operators_are_told(
    members: list[ConsumerMember], epoch: int, target_epoch: int, expected: str
) -> None:
    group = group_of(*members, target="", epoch=epoch)
    group.target_epoch = target_epoch
    assert group.state_name == expected


def test_what_others_own() -> None:
    group = group_of(
        member("a", has="t0"), member("b", has="t1", revoking="u1"), member("c", has="u2"), target=""
    )
    assert group.owned_by_others("a") == {(T, 1), (U, 1), (U, 2)}
    assert group.owned_by_others("b") == {(T, 0), (U, 2)}
    assert group.owned_by_others("c") == {(T, 0), (T, 1), (U, 1)}


# ---- records --------------------------------------------------------------------------------


def whole_member() -> ConsumerMember:
    return ConsumerMember(
        member_id="a",
        instance_id="i",
        rack_id="r",
        client_id="c",
        client_host="h",
        topics=("t", "u"),
        rebalance_timeout_ms=7,
        assignor="range",
        epoch=4,
        previous_epoch=3,
        state=UNREVOKED,
        assigned=parts("t01"),
        revoking=parts("u2 w3"),
    )


def test_records_give_the_member_and_its_target_in_any_order_and_take_them_away() -> None:
    made = [member_record("g", whole_member()), assignment_record("g", whole_member())]
    for records in (made, made[::-1]):
        group = ConsumerGroup(group_id="g")
        for record in (*records, target_record("g", "a", parts("t0 w1"))):
            group.replay(record)
        assert group.members == {"a": whole_member()}
        assert group.targets == {"a": parts("t0 w1")}
        draft = group.draft()
        current, target, metadata = member_tombstones("g", "a")
        draft.replay(current)
        cleared = draft.members["a"]
        assert (cleared.epoch, cleared.previous_epoch, cleared.state) == (0, -1, STABLE)
        assert (cleared.assigned, cleared.revoking, cleared.topics) == ({}, {}, ("t", "u"))
        draft.replay(target)
        draft.replay(metadata)
        assert (draft.members, draft.targets) == ({}, {})
        for gone in (current, target, metadata):
            draft.replay(gone)
        assert (draft.members, draft.targets) == ({}, {})
        assert list(group.members) == list(group.targets) == ["a"], "a draft leaves the group as it is"
        for state, known in ((2, UNRELEASED), (3, STABLE), (-1, STABLE)):
            unknown = made[1].value.__class__(member_epoch=4, previous_member_epoch=3, state=state)
            group.replay(StoredRecord(made[1].key, unknown, 8))
            assert group.members["a"].state is known


def test_epochs_and_topics_of_a_group_come_and_go() -> None:
    group = ConsumerGroup(group_id="g")
    kinds = ConsumerGroupPartitionMetadataValue
    topics = tuple(
        kinds.TopicMetadata(topic_id=topic_id, topic_name=name, num_partitions=count)
        for name, topic_id, count in (("t", T, 3), ("u", U, 1))
    )
    for record in (
        StoredRecord(ConsumerGroupMetadataKey(group_id="g"), ConsumerGroupMetadataValue(epoch=9), 3),
        StoredRecord(ConsumerGroupPartitionMetadataKey(group_id="g"), kinds(topics=topics), 4),
        StoredRecord(
            ConsumerGroupTargetAssignmentMetadataKey(group_id="g"),
            ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=8),
            6,
        ),
    ):
        group.replay(record)
    assert (group.epoch, group.target_epoch, group.topics) == (9, 8, {"t": (T, 3), "u": (U, 1)})
    states = []
    for record in group_tombstones(ConsumerGroup(group_id="g")):
        group.replay(record)
        states.append((group.epoch, group.target_epoch, len(group.topics)))
    assert states == [(9, 0, 2), (9, 0, 0), (0, 0, 0)]
    assert all(one != other for one, other in pairwise(states))


# ---- a group that only stores offsets -------------------------------------------------------


def test_who_only_commits_is_a_group_for_the_next_coordinator_too() -> None:
    groups = Groups()
    assert groups.commit(5, group_id="simple") is ErrorCode.NONE
    for each in (groups, groups.again()):
        assert list(each.state.groups) == ["simple"]
        assert [one.group_id for one in each.answers[each.ask(ListGroups())]] == ["simple"]
