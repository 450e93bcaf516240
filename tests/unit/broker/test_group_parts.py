"""A classic group by itself: who has a place, who leads, which protocol; and its table of offsets."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaquorum.broker.coordinator.groups.consumer.group import ConsumerGroup, ConsumerMember
from metaquorum.broker.coordinator.groups.group import FetchedOffset, FetchOffsets, Group, GroupMember, Phase
from metaquorum.broker.coordinator.groups.offsets import OffsetTable
from metaquorum.broker.coordinator.state import BatchOrigin
from metaquorum.metadata.errors import ErrorCode
from metaquorum.wire.messages import OffsetCommitKey, OffsetCommitValue
from tests.unit.broker.group_world import subscription


def member(name: str, *protocols: str, joined: bool = False, **fields: Any) -> GroupMember:
    return GroupMember(
        member_id=name,
        instance_id=fields.get("instance"),
        client_id="c",
        client_host="h",
        rebalance_timeout_ms=fields.get("timeout", 10),
        session_timeout_ms=5,
        protocols=tuple((each, fields.get("metadata", b"m")) for each in protocols or ("range",)),
        join_key="key" if joined else None,
    )


def group(*members: GroupMember, **fields: Any) -> Group:
    made = Group(group_id="g", **fields)
    for each in members:
        made.add(each, "consumer")
    return made


# ---- members --------------------------------------------------------------------------------


def test_members_come_and_go_and_somebody_leads() -> None:
    made = Group(group_id="g", pending={"a", "x"})
    made.add(member("a"), "first")
    made.add(member("b"), "other")
    assert (made.protocol_type, made.leader, made.pending) == ("first", "a", {"x"})
    made.not_synced = {"a", "b"}
    made.remove("x")
    made.remove("a")
    assert (list(made.members), made.leader, made.not_synced, made.pending) == (["b"], "b", {"b"}, set())
    made.add(member("c"), "other")
    made.remove("c")
    assert made.leader == "b"
    made.remove("b")
    assert (made.members, made.leader) == ({}, None)
    made.add(member("d"), "second")
    assert (made.protocol_type, made.leader) == ("second", "d")


@pytest.mark.parametrize("old", ["a", "b"])
@pytest.mark.parametrize("synced", [True, False])
def test_a_static_member_gets_another_id_in_its_place(old: str, synced: bool) -> None:
    made = group(member("a", instance="1"), member("b", instance="2"))
    made.not_synced = set() if synced else {"a", "b"}
    kept = made.members[old]
    assert made.rename(old, "n") is kept
    assert kept.member_id == "n" and made.members["n"] is kept
    assert list(made.members) == [each if each != old else "n" for each in ("a", "b")]
    assert made.leader == ("n" if old == "a" else "a")
    assert made.not_synced == (set() if synced else {each if each != old else "n" for each in ("a", "b")})
    assert [made.static_id(each) for each in ("1", "2", "3", None)] == [*made.members, None, None]


@pytest.mark.parametrize(
    ("phase", "who", "size", "accepts"),
    [
        (Phase.EMPTY, "x", 0, True),
        (Phase.STABLE, "x", 2, False),
        (Phase.STABLE, "x", 3, True),
        (Phase.STABLE, "a", 0, True),
        (Phase.COMPLETING, "x", 2, False),
        (Phase.PREPARING, "x", 1, False),
        (Phase.PREPARING, "x", 2, True),
        (Phase.PREPARING, "a", 1, True),
        (Phase.PREPARING, "b", 1, False),
        (Phase.PREPARING, "b", 2, True),
    ],
)
def test_who_has_a_place(phase: Phase, who: str, size: int, accepts: bool) -> None:
    """`a` has joined again, `b` has not."""
    made = group(member("a", joined=True), member("b"), phase=phase)
    assert made.accepts(who, size) is accepts


@pytest.mark.parametrize(
    ("joined", "leader", "is_there"),
    [("a", "a", True), ("ab", "a", True), ("b", "b", True), ("bc", "b", True), ("", "a", False)],
)
def test_the_leader_is_one_that_has_joined(joined: str, leader: str, is_there: bool) -> None:
    made = group(*(member(name, joined=name in joined) for name in "abc"))
    assert (made.elect(), made.leader) == (is_there, leader)


def test_all_have_joined_when_nobody_is_missing() -> None:
    made = group(member("a", joined=True, timeout=30), member("b", timeout=20))
    assert (made.awaiting_join, made.has_all_joined, made.rebalance_timeout_ms) == (1, False, 30)
    made.members["b"].join_key = 0
    assert (made.awaiting_join, made.has_all_joined) == (2, True)
    made.pending.add("x")
    assert not made.has_all_joined
    assert group().rebalance_timeout_ms == 0


# ---- protocols ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("preferences", "chosen"),
    [
        (["range"], "range"),
        (["range sticky", "sticky"], "sticky"),
        (["range sticky", "sticky range", "sticky range"], "sticky"),
        (["range sticky", "sticky range"], "range"),
        (["sticky range", "range sticky"], "sticky"),
        (["none range sticky", "sticky range", "range sticky"], "range"),
        (["range", "sticky"], None),
        ([], None),
    ],
)
def test_the_protocol_that_most_prefer_of_those_that_all_support(
    preferences: list[str], chosen: str | None
) -> None:
    made = group(*(member(str(at), *each.split()) for at, each in enumerate(preferences)))
    assert made.select_protocol() == chosen


@pytest.mark.parametrize(
    ("kind", "names", "fits"),
    [
        ("consumer", ["range"], True),
        ("consumer", ["x", "sticky"], True),
        ("consumer", ["alone"], False),
        ("consumer", [], False),
        ("connect", ["range"], False),
    ],
)
def test_who_fits_in(kind: str, names: list[str], fits: bool) -> None:
    made = group(member("a", "range", "sticky", "alone"), member("b", "sticky", "range"))
    assert made.supports(kind, iter(names)) is fits
    assert group().supports(kind, iter(names)) is bool(names)
    assert not group().supports("", ["range"])


def test_topics_are_those_of_the_protocol_in_use() -> None:
    made = group(
        member("a", "range", metadata=subscription("t", "u")),
        member("b", "range", metadata=subscription("w")),
    )
    assert made.subscribed() is None
    made.protocol = "range"
    assert made.subscribed() == {"t", "u", "w"}
    assert made.members["a"].metadata("x") == b""
    made.members["b"] = member("b", "range", metadata=b"?")
    assert made.subscribed() is None
    made.protocol_type = "connect"
    assert made.subscribed() is None


# ---- offsets --------------------------------------------------------------------------------

AT = st.tuples(st.sampled_from("gh"), st.sampled_from("tu"), st.integers(0, 1))
CHANGE = st.one_of(
    st.tuples(st.just("commit"), AT, st.integers(-1, 1)),
    st.tuples(st.just("remove"), AT, st.integers(-1, 1)),
    st.tuples(st.just("end"), st.integers(0, 1), st.booleans()),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(CHANGE, max_size=25))
def test_the_later_commit_counts_once_its_transaction_is_committed(changes: list[tuple[Any, ...]]) -> None:
    """Against a list of all commits; offsets are the places in the log."""
    table = OffsetTable()
    counts: dict[tuple[str, str, int], int] = {}
    open_: dict[int, dict[tuple[str, str, int], int]] = {}
    for place, (what, *more) in enumerate(changes):
        if what == "end":
            producer, committed = more
            pending = open_.pop(producer, {})
            groups = tuple(dict.fromkeys(each[0] for each in pending))
            assert table.marker(producer, committed=committed) == groups
            for at, offset in pending.items():
                if committed and counts.get(at, -1) < offset:
                    counts[at] = offset
        else:
            (name, topic, index), producer = more
            key = OffsetCommitKey(group=name, topic=topic, partition=index)
            value = OffsetCommitValue(offset=place, metadata="", commit_timestamp=0)
            table.replay(key, value if what == "commit" else None, BatchOrigin(place, producer, 0))
            if what == "remove":
                counts.pop((name, topic, index), None)
                for pending in open_.values():
                    pending.pop((name, topic, index), None)
            elif producer < 0:
                counts[name, topic, index] = place
            else:
                open_.setdefault(producer, {})[name, topic, index] = place
        held = {each for pending in open_.values() for each in pending}
        assert set(table.groups) == {name for name, _, _ in counts.keys() | held}
        assert set(table.topics) == {topic for _, topic, _ in counts.keys() | held}
        for name in "ghx":
            own = {(topic, index): place for (one, topic, index), place in counts.items() if one == name}
            assert {at: each.offset for at, each in table.of(name).items()} == own
            assert table.is_held(name) == any(one == name for one, _, _ in held)
            known = own.keys() | {(topic, index) for one, topic, index in held if one == name}
            assert sorted(table.known_of(name)) == sorted(known)
            whole = table.fetch(FetchOffsets(group_id=name, partitions=None))
            assert [(each.topic, each.partition, each.offset) for each in whole] == [
                (*at, own[at]) for at in sorted(own)
            ]
            asked = (("t", 0), ("u", 1))
            stable = table.fetch(FetchOffsets(group_id=name, partitions=asked, require_stable=True))
            for at, each in zip(asked, stable, strict=True):
                is_held = (name, *at) in held
                assert each.error is (ErrorCode.UNSTABLE_OFFSET_COMMIT if is_held else ErrorCode.NONE)
                assert each.offset == (-1 if is_held else own.get(at, -1))


def committed(*topics: str, commit: int = 100, expire: int = -1) -> OffsetTable:
    table = OffsetTable()
    for topic in topics:
        value = OffsetCommitValue(
            offset=1, leader_epoch=4, metadata="x", commit_timestamp=commit, expire_timestamp=expire
        )
        table.replay(OffsetCommitKey(group="g", topic=topic, partition=0), value, BatchOrigin())
    return table


def test_all_of_a_commit_is_told() -> None:
    (found,) = committed("t").fetch(FetchOffsets(group_id="g", partitions=None))
    assert found == FetchedOffset(topic="t", partition=0, offset=1, leader_epoch=4, metadata="x")


STABLE = {"phase": Phase.STABLE, "protocol": "range", "state_since_ms": 500}


@pytest.mark.parametrize(
    ("fields", "wall", "gone"),
    [
        ({"protocol_type": None}, 109, ""),
        ({"protocol_type": None}, 110, "tu"),
        ({"protocol_type": "consumer", "state_since_ms": 500}, 509, ""),
        ({"protocol_type": "consumer", "state_since_ms": 500}, 510, "tu"),
        ({"protocol_type": "consumer", "state_since_ms": 0}, 10, "tu"),
        ({"protocol_type": "consumer", "state_since_ms": -1}, 110, "tu"),
        ({"protocol_type": "consumer", **STABLE}, 109, ""),
        ({"protocol_type": "consumer", **STABLE}, 110, "u"),
        ({"protocol_type": "connect", **STABLE}, 10**6, ""),
        ({"protocol_type": "consumer", **STABLE, "protocol": None}, 10**6, ""),
        ({"protocol_type": "consumer", "phase": Phase.PREPARING}, 10**6, ""),
        ({"protocol_type": "consumer", "phase": Phase.COMPLETING}, 10**6, ""),
    ],
)
def test_offsets_are_kept_for_their_time(fields: dict[str, Any], wall: int, gone: str) -> None:
    made = Group(group_id="g", **fields)
    if made.phase is not Phase.EMPTY:
        made.members["a"] = member("a", "range", metadata=subscription("t"))
    assert committed("t", "u").expired(made, wall, 10) == [(topic, 0) for topic in gone]


@pytest.mark.parametrize(("wall", "gone"), [(109, ""), (110, "u")])
def test_consumer_groups_keep_what_they_subscribe_to(wall: int, gone: str) -> None:
    made = ConsumerGroup(group_id="g", members={"a": ConsumerMember(member_id="a", topics=("t",))})
    assert committed("t", "u").expired(made, wall, 10) == [(topic, 0) for topic in gone]


@pytest.mark.parametrize(
    ("expire", "wall", "gone"), [(0, 0, True), (7, 6, False), (7, 7, True), (10**6, 999, False)]
)
def test_a_client_may_say_when_they_expire(expire: int, wall: int, gone: bool) -> None:
    made = Group(group_id="g", protocol_type="consumer", state_since_ms=0)
    assert bool(committed("t", expire=expire).expired(made, wall, 10)) is gone


def test_what_a_transaction_holds_does_not_expire() -> None:
    table = committed("t", "u")
    value = OffsetCommitValue(offset=2, metadata="", commit_timestamp=0)
    table.replay(OffsetCommitKey(group="g", topic="t", partition=0), value, BatchOrigin(9, 0, 0))
    assert table.expired(Group(group_id="g"), 10**6, 10) == [("u", 0)]
