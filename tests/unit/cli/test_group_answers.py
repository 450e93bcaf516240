"""`metaquorum groups`: what they ask for, what they print for each kind of answer, on which
stream, and the exit code. The functions that ask the cluster are replaced."""

from __future__ import annotations

from typing import Any

import pytest

from metaquorum.cli.admin import groups
from metaquorum.cli.admin.transactions import _now_ms
from metaquorum.clients.admin.groups import (
    Aim,
    Committed,
    DescribedMember,
    GroupDescription,
    GroupListing,
    Planned,
)
from metaquorum.metadata.errors import ApiError, ErrorCode
from tests.unit.cli.answered import Ran, Run, cells, fixture_run

__all__ = ["fixture_run"]

MINUTE_MS = 60_000


def member(name: str, *places: tuple[str, int], instance: str | None = None) -> DescribedMember:
    return DescribedMember(
        member_id=name,
        instance_id=instance,
        client_id=f"client-{name}",
        host=f"/10.0.0.{len(name)}",
        epoch=4,
        partitions=places,
    )


def group(state: str = "Stable", *members: DescribedMember, assignor: str = "range") -> GroupDescription:
    return GroupDescription(
        group_id="g",
        kind="classic",
        protocol_type="consumer",
        state=state,
        assignor=assignor,
        members=members,
    )


def committed(offset: int) -> Committed:
    return Committed(offset=offset, metadata="")


# ---- groups


LISTED = [
    GroupListing(group_id="a", kind="classic", protocol_type="consumer", state="Empty", coordinator=2),
    GroupListing(group_id="b", kind="consumer", protocol_type="consumer", state="Stable", coordinator=0),
    GroupListing(group_id="old", kind="", protocol_type="", state="", coordinator=1),
]


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("", ["a", "b", "old"]),
        ("--type classic", ["a"]),
        ("--type consumer", ["b"]),
        ("--state Empty", ["a"]),
        ("--state Empty --state Stable", ["a", "b"]),
        ("--state Stable --type classic", []),
    ],
)
def test_groups_are_selected(run: Run, words: str, shown: list[str]) -> None:
    found = run(groups, f"groups list {words}", list_groups=LISTED)
    assert [row[0] for row in cells(found.out)] == ["GROUP", *shown]


def test_what_an_older_cluster_does_not_say_of_a_group_is_a_dash(run: Run) -> None:
    assert cells(run(groups, "groups list", list_groups=LISTED).out) == [
        ["GROUP", "TYPE", "PROTOCOL", "STATE", "COORDINATOR"],
        ["a", "classic", "consumer", "Empty", "2"],
        ["b", "consumer", "consumer", "Stable", "0"],
        ["old", "-", "-", "-", "1"],
    ]
    found = run(groups, "groups list --json", list_groups=LISTED[2:])
    assert found.out == [
        '[{"groupId":"old","type":null,"protocolType":"","state":null,"coordinator":1}]',
    ]


def test_a_group_with_members(run: Run) -> None:
    """Of each partition its owner; then members without any. A static member goes by its instance."""
    members = (member("m1", ("t", 0), ("u", 3)), member("m22", instance="static"))
    found = run(
        groups,
        "groups describe g g",
        describe_group=group("Stable", *members),
        committed_offsets={("t", 0): committed(7), ("t", 1): committed(2)},
        log_offsets={("u", 3): 40, ("t", 0): 10, ("t", 1): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION},
    )
    assert (found.code, found.err, found.out[0]) == (0, [], "group g: Stable, 2 members (classic, range)")
    assert cells(found.out[1:]) == [
        ["TOPIC", "PARTITION", "COMMITTED", "END", "LAG", "MEMBER", "CLIENT", "HOST"],
        ["t", "0", "7", "10", "3", "m1", "client-m1", "/10.0.0.2"],
        ["t", "1", "2", "-", "-", "-", "-", "-"],
        ["u", "3", "-", "40", "-", "m1", "client-m1", "/10.0.0.2"],
        ["-", "-", "-", "-", "-", "static", "client-m22", "/10.0.0.3"],
    ]
    assert list(found.asked["log_offsets"][0][0]) == [("t", 0), ("t", 1), ("u", 3)]


@pytest.mark.parametrize(
    ("members", "assignor", "text"),
    [
        ((), "", "group g: Empty, no members (classic)"),
        ((member("m"),), "range", "group g: Empty, 1 member (classic, range)"),
    ],
)
def test_the_heading_of_a_group(
    run: Run, members: tuple[DescribedMember, ...], assignor: str, text: str
) -> None:
    found = run(
        groups,
        "groups describe g",
        describe_group=group("Empty", *members, assignor=assignor),
        committed_offsets={},
        log_offsets={},
    )
    assert (found.out[0], len(found.out)) == (text, 1 + 2 * len(members))


def test_all_groups_and_one_that_is_gone_meanwhile(run: Run) -> None:
    """--all passes over what is gone; a group that was named is missed. Offsets alone are a dead group."""
    answers: dict[str, Any] = {
        "list_groups": LISTED,
        "describe_group": None,
        "committed_offsets": lambda name: {("t", 0): committed(1)} if name != "b" else {},
        "log_offsets": {("t", 0): 5},
    }
    found = run(groups, "groups describe --all", **answers)
    assert (found.code, found.err) == (0, [])
    assert [line for line in found.out if line.startswith("group")] == [
        "group a: Dead, no members",
        "group old: Dead, no members",
    ]
    assert found.out.count("") == 1
    assert [line.split()[3:5] for line in found.out if line.startswith("t ")] == [["5", "4"]] * 2
    found = run(groups, "groups describe b a b", **answers)
    assert (found.code, found.err) == (
        1,
        ["metaquorum: there is no group b; see: metaquorum groups list"],
    )
    assert found.out[0] == "group a: Dead, no members"


def test_a_group_with_members_as_json(run: Run) -> None:
    found = run(
        groups,
        "groups describe g --json",
        describe_group=group("Stable", member("m1", ("t", 0), instance="i")),
        committed_offsets={},
        log_offsets={("t", 0): ErrorCode.LEADER_NOT_AVAILABLE},
    )
    assert found.out == [
        '[{"groupId":"g","state":"Stable","type":"classic","protocolType":"consumer","assignor":"range",'
        '"members":[{"memberId":"m1","instanceId":"i","clientId":"client-m1","host":"/10.0.0.2","epoch":4,'
        '"partitions":[{"topic":"t","partition":0}]}],"partitions":[{"topic":"t","partition":0,'
        '"committedOffset":null,"metadata":null,"endOffset":null,"lag":null,"memberId":"m1",'
        '"error":"LEADER_NOT_AVAILABLE"}]}]'
    ]


def test_groups_are_deleted_one_by_one(run: Run) -> None:
    codes = {"g": ErrorCode.NONE, "h": ErrorCode.NON_EMPTY_GROUP, "i": ErrorCode.NONE}
    found = run(groups, "groups delete g h i g", delete_group=codes.__getitem__)
    assert (found.out, found.code) == (["group g: deleted", "group i: deleted"], 1)
    assert len(found.err) == 1 and found.err[0].startswith("metaquorum: NON_EMPTY_GROUP: group h: ")
    found = run(groups, "groups delete g --json", delete_group=codes.__getitem__)
    assert (found.out, found.err, found.code) == (
        ['[{"groupId":"g","topic":null,"partition":null,"error":"NONE"}]'],
        [],
        0,
    )


@pytest.mark.parametrize(
    ("answers", "out", "err"),
    [
        (
            {
                "partitions_of": ([("t", 0), ("t", 1)], []),
                "delete_offsets": {("t", 0): ErrorCode.NONE, ("t", 1): ErrorCode.NETWORK_EXCEPTION},
            },
            ["group g, t-0: deleted"],
            "metaquorum: NETWORK_EXCEPTION: group g, t-1: refused",
        ),
        (
            {"partitions_of": ([("t", 0)], []), "delete_offsets": ApiError(ErrorCode.NON_EMPTY_GROUP, "x")},
            [],
            "metaquorum: NON_EMPTY_GROUP: group g: ",
        ),
        ({"partitions_of": ([("t", 0)], ["no t", "no u"])}, [], "metaquorum: no t"),
    ],
)
def test_offsets_are_deleted(run: Run, answers: dict[str, Any], out: list[str], err: str) -> None:
    found = run(groups, "groups delete g --offsets --topic t", **answers)
    assert (found.out, found.code, len(found.err)) == (out, 1, 1)
    assert found.err[0].startswith(err)


# ---- offsets of a group


def resetting(run: Run, words: str, *plan: Planned, **more: Any) -> Ran:
    answers: dict[str, Any] = {
        "describe_group": group("Empty"),
        "committed_offsets": {("t", 0): committed(3)},
        "partitions_of": ([("t", 0)], []),
        "plan_reset": list(plan),
        "commit_offsets": {("t", 0): ErrorCode.NONE},
    }
    return run(groups, f"groups reset g {words}", **(answers | more))


TO_9 = Planned(partition=("t", 0), committed=3, new=9)
LOST = Planned(partition=("t", 1), committed=None, new=None, note="no leader")
ADVICE = "metaquorum: nothing was changed: add --execute to commit these offsets"


@pytest.mark.parametrize("words", ["", "--dry-run"])
def test_a_reset_only_shows_offsets_without_execute(run: Run, words: str) -> None:
    found = resetting(run, f"--to-latest --topic t {words}", TO_9)
    assert (found.err, found.code) == ([ADVICE], 0)
    assert cells(found.out) == [
        ["TOPIC", "PARTITION", "COMMITTED", "NEW", "NOTE"],
        ["t", "0", "3", "9"],
    ]
    assert "commit_offsets" not in found.asked


def test_a_reset_is_executed(run: Run) -> None:
    found = resetting(run, "--to-latest --topic t --execute", TO_9)
    assert (found.err, found.code, found.out[1].split()) == ([], 0, ["t", "0", "3", "9"])
    assert found.asked["commit_offsets"] == (("g", {("t", 0): 9}), {})
    refused = resetting(
        run,
        "--to-latest --topic t --execute --json",
        TO_9,
        commit_offsets={("t", 0): ErrorCode.NOT_COORDINATOR, ("t", 1): ErrorCode.NONE},
    )
    assert (refused.err, refused.code) == (["metaquorum: NOT_COORDINATOR: t-0"], 1)
    assert refused.out == [
        '{"groupId":"g","executed":true,"offsets":[{"topic":"t","partition":0,"committedOffset":3,'
        '"newOffset":9,"note":null}]}'
    ]


def test_a_partition_without_a_new_offset_keeps_the_rest_from_being_committed(run: Run) -> None:
    found = resetting(run, "--to-latest --topic t --execute", TO_9, LOST)
    assert (found.code, found.err) == (
        1,
        [
            "metaquorum: t-1: no leader",
            "metaquorum: nothing was changed: name partitions with --topic",
        ],
    )
    assert "commit_offsets" not in found.asked
    assert found.out[2].split() == ["t", "1", "-", "-", "no", "leader"]
    exported = resetting(run, "--to-latest --topic t --export", TO_9, LOST)
    assert (exported.out, exported.err) == (["t,0,9"], ["metaquorum: t-1: no leader"])
    assert resetting(run, "--to-latest --topic t --export", TO_9)[:3] == (["t,0,9"], [], 0)


@pytest.mark.parametrize(
    ("words", "aim", "least", "most"),
    [
        ("--to-earliest", Aim.EARLIEST, 0, 0),
        ("--to-current", Aim.CURRENT, 0, 0),
        ("--to-offset 0", Aim.OFFSET, 0, 0),
        ("--shift-by -2", Aim.SHIFT, -2, -2),
        ("--to-datetime 1970-01-01T00:00:05Z", Aim.TIME, 5_000, 5_000),
        ("--by-duration 365000d", Aim.TIME, 0, 0),
        ("--by-duration 2min", Aim.TIME, -2 * MINUTE_MS, -2 * MINUTE_MS + 5_000),
    ],
)
def test_where_a_reset_goes(run: Run, words: str, aim: Aim, least: int, most: int) -> None:
    """A duration counts back from now, at most to the epoch."""
    before_ms = _now_ms() if least < -10 else 0
    found = resetting(run, f"{words} --topic t", TO_9)
    (goal, places, known), _ = found.asked["plan_reset"]
    assert goal.aim is aim and before_ms + least <= goal.value <= before_ms + most
    assert (places, known) == ([("t", 0)], {("t", 0): committed(3)})


def test_what_a_reset_is_about(run: Run) -> None:
    one = resetting(run, "--to-latest --topic t:0,2 --topic u", TO_9)
    assert one.asked["partitions_of"][0][0] == (("t", (0, 2)), ("u", None))
    everything = resetting(run, "--to-latest --all-topics", TO_9)
    assert everything.asked["partitions_of"][0][0] == [("t", (0,))]


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"describe_group": group("Stable", member("m"))}, "NON_EMPTY_GROUP: group g is Stable, and its"),
        ({"partitions_of": ([], ["there is no topic t"])}, "there is no topic t"),
        ({"partitions_of": ([], ["no t", "no u", "no v"])}, "no t (and 2 more)"),
        ({"partitions_of": ([], [])}, "group g has no committed offsets; name topics with --topic"),
    ],
)
def test_a_reset_is_refused(run: Run, more: dict[str, Any], problem: str) -> None:
    found = resetting(run, "--to-latest --topic t", TO_9, **more)
    assert (found.out, found.code, len(found.err)) == ([], 1, 1)
    assert found.err[0].startswith(f"metaquorum: {problem}")
    assert "plan_reset" not in found.asked
