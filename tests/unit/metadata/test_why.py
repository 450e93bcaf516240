"""The causes that `why` derives: on the recorded scenario, and on made-up records for the rest."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from metaquorum.metadata.errors import InspectError
from metaquorum.metadata.image.directories import damaged_in, given_up_in
from metaquorum.metadata.inspect.causes.table import TABLE
from metaquorum.metadata.inspect.entities.targets import EntityTarget, parse_target
from metaquorum.metadata.inspect.log.log import open_log
from metaquorum.metadata.inspect.log.points import Point
from metaquorum.metadata.inspect.why.explain import explain
from metaquorum.metadata.inspect.why.explanation import Explanation
from metaquorum.metadata.inspect.why.why import Chain
from metaquorum.metadata.records import types as r
from metaquorum.metadata.records.types import FENCED
from metaquorum.storage.disk.posix import PosixDisk
from tests.conftest import REPOSITORY, needs_shared_data, shared_data_path
from tests.unit.metadata.made_logs import add_snapshot, flip, make_node, memory_disk

ROOT = shared_data_path() or Path("absent")
GOLDEN = ROOT / "kafka-3.7" / "controller-3000"
ID, OTHER = bytes(range(16)), bytes(range(1, 17))


def golden(entity: str, at: int | None = None) -> Explanation:
    return explain(open_log(PosixDisk(), str(GOLDEN)), parse_target(entity), Point(offset=at))


# (what is asked, at which offset, its value, the record that made it so, the rules, part of the text)
RECORDED = [
    (
        "topic/t00/0.leader",
        898,
        -1,
        873,
        ["broker-fenced", "no-eligible-leader"],
        "broker 1 was fenced at 889 (no",
    ),
    (
        "topic/t11/0.leader",
        898,
        2,
        833,
        ["broker-fenced", "elected-from-isr"],
        "unfenced since 33 (2026-11-21T03:08",
    ),
    (
        "topic/t18/1.leader",
        998,
        1,
        929,
        ["broker-returned"],
        "broker 1 was unfenced at 928 and is in the ISR [1]",
    ),
    ("topic/t11/0.leader", 1019, 1, 998, ["preferred-election", "elected-from-isr"], "broker 2 was active"),
    (
        "topic/t11/1.leader",
        1078,
        3,
        1021,
        ["controlled-shutdown", "elected-from-isr"],
        "began its controlled shut",
    ),
    (
        "topic/t06/3.leader",
        1078,
        -1,
        1043,
        ["controlled-shutdown", "no-eligible-leader"],
        "the ISR was [2], and none",
    ),
    (
        "topic/t04/5.leader",
        1166,
        3,
        1162,
        ["reassignment-completed", "replica-caught-up"],
        "[3,2,0,1] -> [3,2]",
    ),
    (
        "topic/t04/0.replicas",
        1157,
        [3, 0, 1, 2],
        1152,
        ["reassignment-started"],
        "adding [0,3], removing [1,2]",
    ),
    (
        "topic/big/0.replicas",
        1219,
        [0, 1],
        1217,
        ["reassignment-cancelled", "leader-epoch-raised"],
        "cancelled",
    ),
    (
        "topic/t06/9.leader",
        1320,
        -1,
        1290,
        ["directory-failed", "no-eligible-leader"],
        "log directory at 1319",
    ),
    ("topic/t19/0.isr", 1320, [3], 1318, ["directory-failed"], "broker 0 lost this log directory at 1319"),
    ("topic/t19/0.isr", 1336, [3, 0], 1333, ["replica-caught-up"], "broker 0 caught up: ISR [3] -> [3,0]"),
    ("topic/unclean/0.leader", 1843, -1, 1836, ["broker-fenced", "no-eligible-leader"], "the ISR was [1]"),
    ("topic/unclean/0.leader", 1922, 2, 1921, ["unclean-election", "broker-fenced"], "someone requested it"),
    (
        "topic/unclean/0.leaderRecoveryState",
        2011,
        None,
        2010,
        ["replica-caught-up", "recovery-finished"],
        "settled",
    ),
    ("topic/t06/4.directories", 1650, None, 1622, ["directory-moved"], "another directory"),
    ("broker/1.fenced", 898, True, 889, ["session-expired"], "no heartbeat in time; unfenced since 33"),
    ("broker/2.fenced", 1079, True, 1078, ["shutdown-finished"], "controlled shutdown of broker 2 ended"),
    ("broker/0.logDirs", 1320, ["YqFbFYVxZ4jFBH0AxAAHBA"], 1319, ["directory-failed"], "lost 1 of its 2"),
    ("broker/3.fenced", 2318, True, 2317, ["stopped-or-silent"], "the log does not show which: it shut down"),
    (
        "quorum.leader",
        2070,
        3001,
        2016,
        ["leader-elected", "leader-lost", "epochs-skipped"],
        "no controller won epoch 4",
    ),
    ("quorum.leader", 2071, 3000, 2070, ["leader-elected", "leader-replaced"], "wrote until 850 ms before"),
]


@needs_shared_data
@pytest.mark.parametrize(("entity", "at", "value", "offset", "rules", "text"), RECORDED)
def test_causes_in_the_recorded_scenario(
    entity: str, at: int, value: object, offset: int, rules: list[str], text: str
) -> None:
    found = golden(entity, at)
    last = found.last
    assert last is not None
    assert found.exists
    if value is not None:
        assert found.value == value
    assert last.offset == offset
    assert [cause.rule for cause in last.causes] == rules
    assert any(text in cause.text for cause in last.causes), last.causes


@needs_shared_data
def test_the_whole_chain_of_a_leader() -> None:
    chain = golden("topic/unclean/0.leader").links
    assert [(link.offset, link.changes[0][1:]) for link in chain] == [
        (471, (None, 1)),
        (881, (1, 2)),
        (1008, (2, 1)),
        (1836, (1, -1)),
        (1921, (-1, 2)),
        (4742, (2, -1)),
    ]


@needs_shared_data
def test_what_was_deleted_says_so() -> None:
    found = golden("topic/t05/0")
    assert (found.exists, found.value) == (False, None)
    assert found.last is not None
    assert (found.last.offset, found.last.causes[0].rule) == (781, "deleted")
    assert found.links[0].offset == 139
    config = golden("config/topic/t01/retention.ms")
    assert [(link.offset, link.causes[0].rule) for link in config.links] == [(499, "set"), (506, "removed")]
    assert not config.exists
    assert golden("config/topic/t01").value == {"max.message.bytes": "2000000"}


@needs_shared_data
@pytest.mark.parametrize(
    ("entity", "hint"),
    [
        ("topic/t06/99", "topic/t06 has partitions 0 to 11"),
        ("topic/uncleen/0", "did you mean topic/unclean/0?"),
        ("broker/77", "known are 0, 1, 2, 3"),
        ("acl/nothing", "no record below offset 4758 is about acl/nothing"),
    ],
)
def test_what_never_was_is_said_with_a_hint(entity: str, hint: str) -> None:
    with pytest.raises(InspectError) as caught:
        golden(entity)
    assert hint in str(caught.value)


def chain(target: str, *batches: tuple[int, list[object]]) -> Explanation:
    """What is derived from batches of (time, records), offsets counted on."""
    found, offset = Chain(parse_target(target)), 0
    for time_ms, records in batches:
        found.batch(1, time_ms, list(enumerate(records, offset)))
        offset += len(records)
    return found.result()


def broker(number: int, epoch: int, *, fenced: bool = False, incarnation: bytes = ID) -> r.BrokerRecord:
    return r.BrokerRecord(number, incarnation, epoch, fenced=fenced)


def partition(**more: object) -> r.PartitionRecord:
    fields = {"leader": 1, "leader_epoch": 0, "partition_epoch": 0, **more}
    return r.PartitionRecord(0, ID, (1, 2), (1, 2), **fields)  # type: ignore[arg-type]


def change(**more: object) -> r.PartitionChangeRecord:
    return r.PartitionChangeRecord(0, ID, **more)  # type: ignore[arg-type]


LEVEL = r.FeatureLevelRecord("metadata.version", 19)
START: tuple[int, list[object]] = (
    0,
    [broker(1, 0), broker(2, 1), r.TopicRecord("t", ID), partition(), LEVEL],
)
FENCE = r.BrokerRegistrationChangeRecord(1, 0, fenced=FENCED)

# (what happens, the rule of the last link)
MADE_UP: list[tuple[list[tuple[int, list[object]]], list[str]]] = [
    ([(9, [change(isr=(1,))])], ["replica-lagged"]),
    ([(9, [change(isr=(2,), leader=2)])], ["unexplained", "elected-from-isr"]),
    ([(9, [broker(1, 9, fenced=True, incarnation=OTHER), change(isr=(2,), leader=2)])],
     ["broker-restarted", "elected-from-isr"]),
    ([(9, [r.UnregisterBrokerRecord(1, 0), change(isr=(2,), leader=2)])],
     ["broker-unregistered", "elected-from-isr"]),
    ([(9, [FENCE]), (50_000, [change(isr=(2,), leader=2)])], ["broker-fenced", "elected-from-isr"]),
    ([(9, [change(isr=(2,), leader=2)]), (10, [FENCE])], ["unexplained", "elected-from-isr"]),
    ([(9, [change(isr=(2,), leader=2)]), (60_000, [FENCE])], ["unexplained", "elected-from-isr"]),
    ([(9, [change(isr=(1,), eligible_leader_replicas=(2,))]), (10, [FENCE, change(isr=(2,), leader=2)])],
     ["broker-fenced", "elected-from-elr"]),
    ([(9, [change(leader=1)])], ["leader-epoch-raised"]),
    ([(9, [change(eligible_leader_replicas=(2,))])], ["eligible-leaders-changed"]),
    ([(9, [change(replicas=(2, 1))])], ["replicas-changed"]),
    ([(9, [change(adding_replicas=(2,))]), (10, [change(adding_replicas=(1,))])], ["reassignment-changed"]),
    ([(9, [r.RemoveTopicRecord(ID)])], ["deleted"]),
]  # fmt: skip


@pytest.mark.parametrize(("batches", "rules"), MADE_UP)
def test_causes_that_the_recording_does_not_hold(
    batches: list[tuple[int, list[object]]], rules: list[str]
) -> None:
    found = chain("topic/t/0", START, *batches)
    assert found.last is not None
    assert [cause.rule for cause in found.last.causes] == rules


def test_a_damaged_replica_is_no_lagging_one_and_no_move() -> None:
    """Its broker said that it lies where no directory is, then back, or that it is given up (ADR 13)."""
    home, other = b"h" * 16, b"o" * 16
    start = (
        0,
        [
            r.BrokerRecord(1, ID, 0, log_dirs=(home,)),
            r.BrokerRecord(2, OTHER, 1, log_dirs=(other,)),
            r.TopicRecord("t", ID),
            partition(directories=(home, other)),
            LEVEL,
        ],
    )
    damaged = (9, [change(isr=(2,), leader=2, directories=(damaged_in(home), other))])
    back = (19, [change(directories=(home, other))])
    given_up = (19, [change(directories=(given_up_in(home), other))])
    alone = (9, [change(leader=-1, isr=(1,), directories=(damaged_in(home), other))])
    for batches, expected in (
        ([damaged], {"replica-damaged": "cannot read its replica", "elected-from-isr": ""}),
        ([damaged, back], {"replica-whole": "is intact again"}),
        ([damaged, given_up], {"replica-given-up": "gave up its damaged replica"}),
        ([damaged, given_up, back], {"directory-moved": "moved or recreated"}),
        ([alone, (19, [change(leader=-1)])], {"leader-epoch-raised": ""}),
    ):
        last = chain("topic/t/0", start, *batches).last
        assert last is not None
        told = {cause.rule: cause.text for cause in last.causes}
        assert told.keys() == expected.keys(), told
        assert all(part in told[rule] for rule, part in expected.items()), told


def test_a_split_fence_names_the_offset_of_its_record() -> None:
    """Only a batch with many partitions is a part of one; a small one before it is something else."""
    assert _split_over(1_000, 1_000) == ("broker-fenced", 2_005)
    assert _split_over(999, 1_000) == _split_over(1_000, 1_001) == ("unexplained", None)


def _split_over(partitions: int, gap_ms: int) -> tuple[str, int | None]:
    """The cause that a partition's leader changed by a batch with `partitions` changes, before a fence."""
    made = [partition(), *(msgspec.structs.replace(partition(), partition_id=at) for at in range(1, 1_000))]
    moved = [msgspec.structs.replace(change(isr=(2,), leader=2), partition_id=at) for at in range(partitions)]
    if len(moved) < len(made):
        moved.append(r.NoOpRecord())
    begun = (0, [*START[1][:3], *made, START[1][4], r.NoOpRecord()])
    found = chain("topic/t/0.leader", begun, (9, moved), (9 + gap_ms, [FENCE]))
    assert found.last is not None
    return found.last.causes[0].rule, found.last.causes[0].offset


def test_a_topic_that_was_created_anew_begins_a_new_chain() -> None:
    again = (
        [r.RemoveTopicRecord(ID)],
        [r.TopicRecord("t", OTHER), r.PartitionRecord(0, OTHER, (2,), (2,), leader=2)],
    )
    found = chain("topic/t/0", START, (5, again[0]), (6, again[1]))
    assert [link.offset for link in found.links] == [7]
    assert found.exists


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("topic/orders/7.leader", EntityTarget(entity="topic/orders/7", field="leader")),
        ("topic/a.b/7.leader_epoch", EntityTarget(entity="topic/a.b/7", field="leaderEpoch")),
        ("topic/a.leader", EntityTarget(entity="topic/a.leader")),
        ("broker/3.in_controlled_shutdown", EntityTarget(entity="broker/3", field="inControlledShutdown")),
        ("config/topic/orders/retention.ms", EntityTarget(entity="config/topic/orders/retention.ms")),
        ("feature/metadata.version", EntityTarget(entity="feature/metadata.version")),
        ("quorum.leader", EntityTarget(entity="quorum", field="leader")),
    ],
)
def test_targets_are_read(text: str, target: EntityTarget) -> None:
    assert parse_target(text) == target


def test_which_entities_are_partitions() -> None:
    assert EntityTarget(entity="topic/a/7").partition == ("a", 7)
    for entity in ("topic/a", "topic/a/x", "topic/7", "broker/7", "config/broker/7", "quorum"):
        assert EntityTarget(entity=entity).partition is None


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("topic/t/0.leadr", "did you mean leader?"),
        ("broker/1.xyzzy", "it has epoch, incarnationId"),
        ("brokers/1", "did you mean broker/1?"),
        ("broker/", "ends in a slash"),
    ],
)
def test_mistakes_in_targets_say_what_to_write(text: str, hint: str) -> None:
    with pytest.raises(ValueError, match=re.escape(hint)):
        parse_target(text)


def test_a_trimmed_log_begins_with_its_snapshot_and_a_gap_ends_the_chain() -> None:
    disk = memory_disk()
    node = make_node(disk, per_segment=6)
    add_snapshot(node, 10)
    problems: list[str] = []
    disk.remove(node.log.directory + "/00000000000000000000.log")
    found = explain(node.log, parse_target("topic/orders/1.leader"), on_problem=problems.append)
    assert [(link.type_name, link.offset) for link in found.links] == [
        ("SNAPSHOT", 10),
        ("PARTITION_CHANGE_RECORD", 13),
    ]
    assert problems == []
    flip(node, 12)
    cut = explain(node.log, parse_target("topic/orders/1.leader"), on_problem=problems.append)
    assert [link.offset for link in cut.links] == [10]
    assert any("continue past the gap with --past-corruption" in line for line in problems)
    past = explain(node.log, parse_target("topic/orders/1.leader"), past_corruption=True)
    assert [link.offset for link in past.links] == [10, 13]


def test_every_rule_that_the_code_names_is_in_the_table() -> None:
    rooms = [*(REPOSITORY / "metadata" / "inspect").rglob("*.py"), *(REPOSITORY / "pipeline").rglob("*.py")]
    source = "".join(path.read_text() for path in rooms)
    used = set(re.findall(r'(?:Cause\(rule=|\.rule [!=]= |word_of\()"([a-z-]+)"', source))
    assert used <= (names := {rule.name for rules in TABLE for rule in rules.rules}), used - names
    assert len(used) > 5
