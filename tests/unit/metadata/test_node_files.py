"""What `log check` finds in the files beside a log, and in the votes of its elections."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from metaquorum.metadata.inspect.checks.check import check_log
from metaquorum.metadata.inspect.checks.node_files import FILE_RULES
from metaquorum.metadata.inspect.log.log import MetadataLog, open_log
from metaquorum.metadata.inspect.nodes.matching import check_quorum
from metaquorum.metadata.records import types as r
from metaquorum.metadata.records.control import LeaderChangeMessage, LeaderVoter
from metaquorum.storage.disk.interface import join, parent_of
from metaquorum.storage.files.meta_properties import MetaProperties
from metaquorum.storage.files.quorum_state import QuorumState
from metaquorum.storage.log.epochs import EpochTable
from metaquorum.storage.log.recovery import RecoveryPoint, store_recovery_point
from metaquorum.storage.log.segment import segment_name
from metaquorum.storage.types import LogPosition
from tests.conftest import REPOSITORY
from tests.unit.metadata.made_logs import CLUSTER, STORY, Batch, add_snapshot, make_node, memory_disk, write

EPOCHS = ((1, 0), (2, 11))
"""Those of STORY."""
VOTERS = (3000, 3001, 3002)
Found = list[tuple[str, str, str]]


def sound() -> MetadataLog:
    log = make_node(memory_disk()).log
    state(log, QuorumState(epoch=2, leader_id=3001, voters=VOTERS))
    epochs(log, EPOCHS)
    return log


def state(log: MetadataLog, stored: QuorumState) -> None:
    write(log.disk, join(log.directory, "quorum-state"), stored.encode())


def epochs(log: MetadataLog, entries: tuple[tuple[int, int], ...]) -> None:
    write(log.disk, join(log.directory, "leader-epoch-checkpoint"), EpochTable(entries).encode())


def identity(log: MetadataLog, node_id: int, directory_id: bytes) -> None:
    made = MetaProperties(cluster_id=CLUSTER, node_id=node_id, directory_id=directory_id)
    write(log.disk, join(parent_of(log.directory), "meta.properties"), made.encode())


def faults(log: MetadataLog) -> Found:
    report = check_log(open_log(log.disk, log.path))
    return [(one.rule, one.severity, one.where) for one in report.findings if one.rule in RULES]


RULES = {*FILE_RULES, "election-has-a-majority"}
KEPT = ("vote-is-kept", "error", "quorum-state")
FOREIGN = ("vote-is-of-the-quorum", "error", "quorum-state")
AGREE = ("epochs-agree", "error", "leader-epoch-checkpoint")


def garbage(name: str, data: bytes = b"\x00garbage\n") -> Callable[[MetadataLog], None]:
    def spoil(log: MetadataLog) -> None:
        directory = parent_of(log.directory) if name == "meta.properties" else log.directory
        write(log.disk, join(directory, name), data)

    return spoil


MISTAKES: dict[str, tuple[Callable[[MetadataLog], None], tuple[str, str, str]]] = {
    "quorum-state rolled back": (lambda log: state(log, QuorumState(epoch=1, voters=VOTERS)), KEPT),
    "quorum-state with another leader": (
        lambda log: state(log, QuorumState(epoch=2, leader_id=3002, voters=VOTERS)),
        FOREIGN,
    ),
    "quorum-state of another quorum": (
        lambda log: state(log, QuorumState(epoch=9, leader_id=1, voters=(1, 2, 3))),
        FOREIGN,
    ),
    "quorum-state with other voters": (
        lambda log: state(log, QuorumState(epoch=2, leader_id=3001, voters=(3000, 3001, 3005))),
        FOREIGN,
    ),
    "quorum-state that voted for a stranger": (
        lambda log: state(log, QuorumState(epoch=7, voted_id=9, voters=VOTERS)),
        FOREIGN,
    ),
    "quorum-state garbage": (garbage("quorum-state"), ("files-are-readable", "error", "quorum-state")),
    "epoch from another offset on": (lambda log: epochs(log, ((1, 0), (2, 9))), AGREE),
    "another epoch": (lambda log: epochs(log, ((1, 0), (3, 11))), AGREE),
    "an epoch more": (lambda log: epochs(log, ((1, 0), (2, 11), (4, 13))), AGREE),
    "an epoch missing": (lambda log: epochs(log, ((1, 0),)), AGREE),
    "epochs behind the log's end": (lambda log: epochs(log, (*EPOCHS, (5, 40))), AGREE),
    "the first epoch missing": (lambda log: epochs(log, EPOCHS[1:]), AGREE),
    "no epochs": (lambda log: epochs(log, ()), AGREE),
    "epochs garbage": (
        garbage("leader-epoch-checkpoint"),
        ("files-are-readable", "error", "leader-epoch-checkpoint"),
    ),
    "meta.properties garbage": (
        garbage("meta.properties"),
        ("files-are-readable", "error", "meta.properties"),
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_wrong_file_is_found_and_nothing_else(name: str) -> None:
    log = sound()
    assert faults(log) == []
    spoil, wanted = MISTAKES[name]
    spoil(log)
    assert faults(log) == [wanted]


def test_epochs_above_the_recovery_point_may_be_missing() -> None:
    """They are written with it: a running node, or one that was killed, has them in its log only."""
    log = sound()
    for entries, written_up_to, found in (
        ((), 0, []),
        (EPOCHS[:1], 11, []),
        (EPOCHS[:1], 12, [AGREE]),
        (EPOCHS[1:], 0, [AGREE]),
        (((1, 0), (2, 9)), 0, [AGREE]),
    ):
        epochs(log, entries)
        store_recovery_point(log.disk, log.directory, point_at(written_up_to))
        assert faults(log) == found, (entries, written_up_to)


def point_at(offset: int) -> RecoveryPoint:
    return RecoveryPoint(
        offset=offset, segment=0, position=0, start_offset=0, start_epoch=0, resetting=False, epoch=0
    )


def test_files_that_nodes_write_are_right() -> None:
    """Ahead of the log after a crash, in a trimmed log, and in one whose start moved before its segments."""
    log = sound()
    epochs(log, (*EPOCHS, (3, 15)))
    state(log, QuorumState(epoch=3, voted_id=3002, voters=VOTERS))
    assert faults(log) == []
    node = make_node(memory_disk(), per_segment=6)
    log = node.log
    add_snapshot(node, 12)
    epochs(log, ((2, 12),))
    assert log.snapshots() == [LogPosition(2, 12)]
    assert faults(log) == []
    log.disk.remove(join(log.directory, segment_name(0)))
    epochs(log, ((1, log.segments[0]), (2, 11)))
    assert faults(log) == []
    epochs(log, EPOCHS)
    assert faults(log) == [], "an entry from before the log's start"


def elects(leader: int, granting: Sequence[int], voters: Sequence[int] = VOTERS) -> LeaderChangeMessage:
    return LeaderChangeMessage(
        leader, tuple(map(LeaderVoter, voters)), tuple(LeaderVoter(voter) for voter in granting)
    )


@pytest.mark.parametrize(
    ("election", "text"),
    [
        (elects(3000, [3000]), "is granted by 1 of 3 voters, which is no majority"),
        (elects(3000, [3000, 9]), "is granted by 9, not a voter"),
        (elects(3000, [3000, 3001, 9]), "is granted by 9, not a voter"),
        (elects(7, [3000, 3001]), "elects 7, which is not one of its voters"),
        (elects(3000, [3000, 3001], [3000, 3001, 3002, 3003]), "is granted by 2 of 4 voters"),
        (elects(3000, [3000, 3001]), ""),
        (elects(3000, [3000], [3000]), ""),
        (elects(3000, []), ""),
    ],
)
def test_an_election_needs_a_majority_of_its_voters(election: LeaderChangeMessage, text: str) -> None:
    report = check_log(make_node(memory_disk(), [(1, [election]), (1, [r.NoOpRecord()])]).log)
    told = [one.text for one in report.findings if one.rule == "election-has-a-majority"]
    assert [text in line for line in told] == [True] * bool(text)


def test_two_directories_with_one_id_are_found() -> None:
    disk = memory_disk()
    logs = [make_node(disk, home=f"/q/{node}", node_id=node).log for node in VOTERS]
    assert check_quorum(logs).is_sound

    def between(node_id: int, directory_id: bytes) -> list[tuple[str, str]]:
        identity(logs[1], node_id, directory_id)
        reports = check_quorum([open_log(disk, log.path) for log in logs]).logs
        assert not [one for at, report in enumerate(reports) if at != 1 for one in report.findings]
        return [(one.severity, one.text.partition(" of ")[0]) for one in reports[1].findings]

    first = make_node(memory_disk(), node_id=3000).log.identity
    assert first is not None and first.directory_id is not None
    other = b"other directory!"
    assert between(3000, other) == [("error", "node 3000 is also that")]
    assert between(3001, first.directory_id)[0][0] == "error"
    assert between(3000, first.directory_id)[0][0] == "warning"
    assert between(3001, other) == []


def test_a_vote_that_another_nodes_log_names_is_not_forgotten() -> None:
    """A node whose directory is an older copy: its own log agrees with its vote."""
    disk = memory_disk()
    logs = [
        make_node(disk, home="/q/a", node_id=3000).log,
        make_node(disk, STORY[:7], home="/q/b", node_id=3001).log,
    ]
    state(logs[1], QuorumState(epoch=1, leader_id=3000, voters=VOTERS))
    reports = check_quorum(logs).logs
    (found,) = reports[1].findings
    assert (found.rule, found.severity) == ("vote-is-kept", "error")
    assert "node 3001 voted in the election of epoch 2" in found.text
    assert not reports[0].findings


def test_the_rules_are_documented() -> None:
    text = (REPOSITORY / "docs" / "log-tools.md").read_text()
    for name, what in FILE_RULES.items():
        assert f"\n- `{name}`: {what}\n" in text.replace("\n  ", " ")


def test_the_time_to_read_segments_grows_with_their_number_only() -> None:
    """To list a directory takes a time per name in it, so it must not be listed once per segment."""
    listed = []
    for segments in (20, 60):
        batches: list[Batch] = [*STORY, *((2, [r.NoOpRecord()]) for _ in range(2 * segments))]
        log = make_node(memory_disk(), batches, per_segment=2).log
        assert len(log.segments) > segments
        count = 0
        inner = log.disk.list_directory

        def counted(path: str) -> list[str]:
            nonlocal count
            count += 1
            return inner(path)  # noqa: B023

        log.disk.list_directory = counted  # type: ignore[method-assign]
        check_log(log)
        listed.append(count)
    assert listed[0] == listed[1]
