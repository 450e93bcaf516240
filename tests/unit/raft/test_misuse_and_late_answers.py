"""Hooks that no one brings, calls at the wrong time, and answers that say that the asker is out of date."""

from __future__ import annotations

import ast
import inspect
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from metaquorum import raft
from metaquorum.metadata.image import MetadataImage, Provenance
from metaquorum.metadata.replica import MetadataReplica, MetadataReplicaConfig
from metaquorum.raft.config import Identity, RaftConfig, RecoveredLog, Voter
from metaquorum.raft.core import RaftCore
from metaquorum.raft.effects import ResetLog, Warn, WriteSnapshotChunk
from metaquorum.raft.errors import RaftInvariantError, RaftUsageError
from metaquorum.raft.events import SnapshotLoaded
from metaquorum.raft.messages import (
    BeginQuorumEpochRequest,
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    RaftError,
    RaftRequest,
    VoteResponse,
)
from metaquorum.raft.roles import Resigned
from metaquorum.raft.voters import (
    VOTERS_TYPE,
    ControlValue,
    VoterChange,
    VoterNode,
    VotersAt,
    VoterSet,
    kraft_version_record,
    voter_changes,
    voters_record,
)
from metaquorum.storage.batches.encode import encode_batch
from metaquorum.storage.errors import BatchError
from metaquorum.storage.types import LogPosition
from metaquorum.storage.uuids import uuid_to_text
from metaquorum.testing.faulty_disk import FaultyDisk
from tests.raft.world import directory
from tests.unit.raft.test_core import make
from tests.unit.raft.test_following import answer, batches, begin, chunk, load, redirected
from tests.unit.raft.test_voters import control_batch

VOTERS = tuple(raft.Voter(node_id=at, host="127.0.0.1", port=9000 + at) for at in (1, 2, 3))


def test_the_library_has_what_it_lists_and_nothing_else() -> None:
    for name in raft.__all__:
        assert getattr(raft, name) is not None
    assert raft.messages.VoteResponse is VoteResponse
    with pytest.raises(AttributeError, match="has no attribute 'Core'"):
        raft.Core  # noqa: B018


# ---- the blocking driver --------------------------------------------------------------------------


class Driver(raft.BlockingDriver):
    """Node 1 of VOTERS on a disk in memory; writes down what it is asked to do."""

    def __init__(self, voters: int = 3) -> None:
        disk = FaultyDisk(random.Random(1))
        raft.create_directory(disk, "/r", cluster_id="c", node_id=1, rng=random.Random(1))
        self.clock = 1000
        self.sent: list[tuple[int, int]] = []
        self.warned: list[str] = []
        self.answered: list[tuple[int, bool]] = []
        super().__init__(
            raft.ReplicaStore.open(disk, "/r", voter_ids=(1, 2, 3)[:voters]),
            VOTERS[:voters],
            RaftConfig(),
            rng=random.Random(1),
            now_ms=lambda: self.clock,
            wall_ms=lambda: 5 * self.clock,
        )
        self.start()

    def send(self, to: int, correlation_id: int, request: RaftRequest, timeout_ms: int) -> None:
        self.sent.append((to, correlation_id))

    def on_committed(self, batches: raft.Batches) -> None:
        pass

    def on_read(self, token: int, *, ready: bool) -> None:
        self.answered.append((token, ready))

    def warn(self, message: str) -> None:
        self.warned.append(message)

    def next_tick(self) -> None:
        self.clock += self.wait_ms() or 0
        self.tick()


def standing() -> Driver:
    driver = Driver()
    while not driver.sent:
        driver.next_tick()
    assert [to for to, _ in driver.sent] == [2, 3]
    return driver


@pytest.mark.parametrize("right", [True, False])
def test_a_request_that_failed_is_sent_again_after_a_pause(right: bool) -> None:
    """By the node that it was sent to; another one cannot fail it."""
    driver = standing()
    (_, first), _ = driver.sent
    driver.on_request_failed(2 if right else 3, first, "refused")
    driver.clock += RaftConfig().retry_backoff_ms - 1
    driver.tick()
    assert len(driver.sent) == 2
    driver.clock += 1
    driver.tick()
    assert [to for to, _ in driver.sent[2:]] == [2] * right
    assert driver.core.wall_ms == 5 * driver.clock


def test_what_the_operator_should_know_is_said() -> None:
    driver = standing()
    answer = VoteResponse(
        error=RaftError.INCONSISTENT_CLUSTER_ID, epoch=0, leader_id=None, vote_granted=False, pre_vote=True
    )
    driver.on_response(*driver.sent[0], answer)
    (warned,) = driver.warned
    assert warned.startswith("node 2 belongs to another cluster than c")


def test_a_read_is_ready_where_this_node_leads_and_lost_elsewhere() -> None:
    lone, other = Driver(voters=1), standing()
    lone.read(7)
    other.read(8)
    assert (lone.answered, other.answered) == ([(7, True)], [(8, False)])


class Stumbling(Driver):
    """Cannot apply what is at offset 2."""

    handed = (-1, -1)

    def on_committed(self, batches: raft.Batches) -> None:
        self.handed = (self.applied_offset, batches.base_offset)
        if batches.base_offset == 2:
            raise ValueError("a record that makes no sense")


def test_what_a_hook_could_not_apply_is_not_applied() -> None:
    driver = Stumbling(voters=1)
    driver.append([b"fine"])
    assert driver.handed == (1, 1) and driver.applied_offset == 2
    with pytest.raises(ValueError, match="makes no sense"):
        driver.append([b"odd"])
    assert driver.handed == (2, 2) and driver.applied_offset == 2
    with pytest.raises(RaftUsageError, match="ended with an error"):
        driver.append([b"more"])


def test_leadership_is_given_up_in_order() -> None:
    driver = Driver(voters=1)
    assert driver.core.is_leader
    driver.resign()
    assert driver.core.role == "resigned" and not driver.core.resignation_pending
    follower = standing()
    follower.resign()
    assert follower.core.role == "prospective"


@pytest.mark.parametrize(
    ("use", "error"),
    [
        (lambda driver: driver.respond(1, FetchResponse(error=RaftError.NONE, epoch=1, leader_id=1)), None),
        (lambda driver: driver.on_committed(None), None),
        (lambda driver: driver.read_snapshot(LogPosition(1, 5), "f"), "override read_snapshot"),
        (lambda driver: driver.load_snapshot(0), None),
    ],
)
def test_hooks_that_are_needed_must_be_brought(use: Callable[[Any], object], error: str | None) -> None:
    bare = raft.BlockingDriver.__new__(raft.BlockingDriver)
    with pytest.raises(NotImplementedError if error is None else RaftUsageError, match=error):
        use(bare)


# ---- the core -------------------------------------------------------------------------------------


def test_only_a_leader_has_a_view_of_replicas() -> None:
    core = make()
    core.start(now_ms=0)
    with pytest.raises(RaftInvariantError, match="unattached has no view of replicas"):
        core.state.leader_view()


@pytest.mark.parametrize("level", [0, 1])
def test_a_voter_with_another_disk_is_told_both_directories_and_what_to_do(level: int) -> None:
    node = VoterNode(node_id=1, directory_id=directory(1))
    changes = (VoterChange(offset=-1, kraft_version=1), VoterChange(offset=-1, voters=VoterSet([node])))
    core = RaftCore(
        RaftConfig(),
        Identity(cluster_id="c", node_id=1, directory_id=directory(9)),
        (Voter(node_id=1, host="h", port=1, directory_id=directory(1)),),
        RecoveredLog(voter_changes=changes if level else ()),
        random.Random(1),
    )
    (warning,) = [one.message for one in core.start(now_ms=0) if isinstance(one, Warn)]
    assert f"directory id {uuid_to_text(directory(1))}" in warning
    assert f"this directory has {uuid_to_text(directory(9))}" in warning
    assert ("remove the voter with the lost directory" in warning) == (level == 1)
    assert core.committed_kraft_version == core.kraft_version == level


def test_a_chunk_from_a_leader_of_a_later_epoch_is_none_of_this_fetch() -> None:
    core, request = redirected()
    late = raft.messages.FetchSnapshotResponse(
        error=RaftError.NONE,
        epoch=5,
        leader_id=3,
        snapshot=LogPosition(3, 9),
        position=0,
        size_bytes=4,
        data=b"abcd",
    )
    effects = core.on_response(2, request.correlation_id, late, now_ms=5)
    assert (core.epoch, core.leader_id) == (5, 3)
    assert not any(isinstance(one, WriteSnapshotChunk) for one in effects)


@pytest.mark.parametrize("other", [LogPosition(1, 1), LogPosition(3, 1), LogPosition(4, 1)])
def test_only_the_snapshot_that_was_asked_for_replaces_a_log_that_goes_as_far(other: LogPosition) -> None:
    """Another one that was loaded meanwhile has nothing that this log lacks."""
    for loaded in (other, LogPosition(3, 9)):
        core, request = redirected()
        core.on_response(2, request.correlation_id, chunk(0, b"0123456789"), now_ms=5)
        resets = [one for one in core.on_snapshot_loaded(loaded, now_ms=6) if isinstance(one, ResetLog)]
        assert [one.position for one in resets] == [loaded] * (loaded != other)


def test_a_leader_that_resigned_does_not_wait_for_voters_that_went() -> None:
    """Which it learns from a snapshot that comes meanwhile."""
    core = make(recovered=RecoveredLog(epoch=4, leader_id=1, voted_id=1))
    core.start(now_ms=0)
    role = core.state.role
    assert isinstance(role, Resigned) and role.unacknowledged == {2, 3}
    left = VoterSet(VoterNode(node_id=at, directory_id=directory(at)) for at in (1, 3, 4))
    core.on_snapshot_loaded(LogPosition(3, 9), VotersAt(1, left), now_ms=5)
    assert core.state.role is role and role.unacknowledged == {3}


def test_a_record_that_names_no_voter_is_refused() -> None:
    one = VoterSet([VoterNode(node_id=1, directory_id=directory(1))])
    assert len(voter_changes(control_batch(kraft_version_record(1), voters_record(one)))) == 2
    none = ControlValue(VOTERS_TYPE, voters_record(VoterSet()).value)
    with pytest.raises(BatchError, match="VotersRecord at offset 7 names no voter"):
        voter_changes(control_batch(none))


TAGS = b"\x02" + b"\x03\x02ab" + b"\x81\x01\x00"
"""Two fields of a later release: number 3 of two bytes, number 129 of none."""


def test_fields_of_a_later_release_are_passed_over() -> None:
    """Wherever a record may have them; one that is cut off is damage."""
    level = kraft_version_record(1)
    assert level.value.endswith(b"\x00")
    more = ControlValue(level.control_type, level.value[:-1] + TAGS)
    assert [one.kraft_version for one in voter_changes(control_batch(more))] == [1]
    for cut in range(1, len(TAGS)):
        damaged = ControlValue(level.control_type, more.value[:-cut])
        with pytest.raises(BatchError, match="KRaftVersionRecord at offset 7"):
            voter_changes(control_batch(damaged))
    one = VoterSet([VoterNode(node_id=1, directory_id=directory(1))])
    record = voters_record(one)
    assert record.value.endswith(b"\x00\x00\x00")  # of the range of versions, of the voter, of the record
    more = ControlValue(record.control_type, record.value[:-3] + 3 * TAGS)
    assert [change.voters for change in voter_changes(control_batch(more))] == [one]


# Time has one name: the keyword `now_ms` is the core's clock; `wall_ms` is for records and display only.


RAFT = Path(__file__).resolve().parents[3] / "raft"
CLOCKS = {"at_ms", "clock", "monotonic", "monotonic_ms", "now", "time", "time_ms", "timestamp", "wall"}
INPUTS = [
    method
    for name, method in inspect.getmembers(RaftCore, inspect.isfunction)
    if not name.startswith("_") and "list[RaftEffect]" in str(inspect.signature(method).return_annotation)
]


def functions() -> Iterator[tuple[str, list[str], list[str]]]:
    """Where each function of the library stands, its parameters, and those of them that are keywords."""
    for path in sorted(RAFT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.Lambda):
                where = f"{path.relative_to(RAFT)} {getattr(node, 'name', 'lambda')}"
                keywords = [each.arg for each in node.args.kwonlyargs]
                places = [each.arg for each in (*node.args.posonlyargs, *node.args.args)]
                yield where, [*places, *keywords], keywords


def test_the_time_is_a_keyword() -> None:
    found = [(where, "now_ms" in keywords) for where, names, keywords in functions() if "now_ms" in names]
    assert len(found) > 90
    assert [where for where, is_keyword in found if not is_keyword] == []


def test_time_has_no_other_name() -> None:
    assert [(where, name) for where, names, _ in functions() for name in names if name in CLOCKS] == []


@pytest.mark.parametrize("method", INPUTS, ids=lambda method: method.__name__)
def test_every_input_of_the_core_takes_the_time(method: Callable[..., Any]) -> None:
    assert inspect.signature(method).parameters["now_ms"].kind is inspect.Parameter.KEYWORD_ONLY


# A driver uses the state of a fetched snapshot only if the core takes the snapshot (contract, point 14).


SNAPSHOT = LogPosition(3, 9)

FILE = encode_batch(base_offset=0, leader_epoch=0, timestamp_ms=1, values=[b"seen"])


def pass_snapshot(core: RaftCore) -> None:
    """Another leader sends the log past the snapshot."""
    fetch = begin(core, 3, 5, 3)
    core.on_response(3, fetch.correlation_id, answer(5, 3, records=batches(1, 12, 5)), now_ms=4)


@pytest.mark.parametrize("passed", [False, True])
def test_a_replica_of_metadata_keeps_its_state_if_the_log_has_passed_the_snapshot(passed: bool) -> None:
    core, request = redirected()
    load(core, request)
    replica = MetadataReplica(core, MetadataImage(), MetadataReplicaConfig(), now_ms=0)
    before = replica.state
    if passed:
        pass_snapshot(core)
    image = MetadataImage().with_provenance(Provenance(9, 3, 0))
    effects = replica.handle(SnapshotLoaded(position=SNAPSHOT, image=image), 6)
    assert any(isinstance(one, ResetLog) for one in effects) == (not passed)
    assert (replica.state is before) == passed
    assert replica.applied_offset == (0 if passed else 9)
    assert replica.snapshots.last_offset == (0 if passed else 9)


class Taking(raft.BlockingDriver):
    """Node 1, a follower of node 2. With `passed`, a message that moves the log past the snapshot is handled
    while the snapshot is read."""

    def __init__(self, *, passed: bool) -> None:
        disk = FaultyDisk(random.Random(1))
        raft.create_directory(disk, "/r", cluster_id="c", node_id=1, rng=random.Random(1))
        store = raft.ReplicaStore.open(disk, "/r", voter_ids=(1, 2, 3))
        super().__init__(store, VOTERS, raft.RaftConfig(), rng=random.Random(1), now_ms=lambda: 1000)
        self.passed, self.loaded, self.asked = passed, list[bytes](), list[tuple[int, raft.RaftRequest]]()
        self.committed: list[int] = []
        self.start()
        self.begin_epoch(4, 2)

    def begin_epoch(self, epoch: int, leader: int) -> None:
        self.on_request(
            epoch,
            BeginQuorumEpochRequest(
                cluster_id="c", epoch=epoch, leader_id=leader, voter_id=1, voter_directory_id=b""
            ),
        )

    def send(self, to: int, correlation_id: int, request: raft.RaftRequest, timeout_ms: int) -> None:
        self.asked.append((correlation_id, request))

    def respond(self, key: int, response: raft.RaftResponse) -> None:
        pass

    def on_committed(self, batches: raft.Batches) -> None:
        self.committed.append(batches.base_offset)

    def read_snapshot(self, position: LogPosition, path: str) -> bytes:
        if self.passed:
            self.begin_epoch(5, 3)
            (at,) = [key for key, one in self.core.state.in_flight.items() if one.to == 3]
            self.on_response(3, at, answer(5, 3, records=batches(0, 13, 5), high_watermark=13))
        return b"seen"

    def load_snapshot(self, state: bytes) -> None:
        self.loaded.append(state)


@pytest.mark.parametrize("passed", [False, True])
def test_the_blocking_driver_applies_the_log_that_has_passed_the_snapshot(passed: bool) -> None:
    driver = Taking(passed=passed)
    at, request = driver.asked[-1]
    assert isinstance(request, FetchRequest)
    driver.on_response(2, at, answer(snapshot=SNAPSHOT))
    at, request = driver.asked[-1]
    assert isinstance(request, FetchSnapshotRequest)
    driver.on_response(2, at, chunk(0, FILE, size=len(FILE)))
    assert driver.loaded == ([] if passed else [b"seen"])
    assert driver.committed == ([0] if passed else [])
    assert driver.applied_offset == (13 if passed else 9)
