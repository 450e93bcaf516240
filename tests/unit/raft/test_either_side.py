"""Equality and bounds from both sides: ids, positions and directories that are lower and higher, times just
before a bound and on it."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from metaquorum.raft.config import Identity, RaftConfig, RecoveredLog, Voter
from metaquorum.raft.core import RaftCore
from metaquorum.raft.effects import PersistQuorumState, Respond, RespondWithSnapshotChunk, SendRequest, Warn
from metaquorum.raft.messages import (
    FetchRequest,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    RaftError,
    VoteRequest,
    VoteResponse,
)
from metaquorum.raft.roles import Follower, Prospective
from metaquorum.raft.store import create_directory
from metaquorum.storage.batches.batch import Batches
from metaquorum.storage.errors import CorruptFileError
from metaquorum.storage.types import LogPosition
from metaquorum.testing.faulty_disk import FaultyDisk
from tests.raft.world import directory
from tests.unit.raft.test_core import batch, make
from tests.unit.raft.test_following import follower, redirected, sent
from tests.unit.raft.test_timers_and_replicas import answers, fetch_of, leading


@pytest.mark.parametrize("other", [0, 1, 3, 9])
def test_what_another_directory_acknowledged_does_not_count(other: int) -> None:
    """A voter without a pinned directory comes back with another disk; its fetch does not match the log."""
    world, core = leading(options="pinned=no")
    assert core.describe(now_ms=world.now)[1].log_end_offset == 1
    request = fetch_of(2, 7, last_fetched_epoch=1, replica_directory_id=directory(other))
    core.on_request(500, request, now_ms=world.now)
    replica = core.describe(now_ms=world.now)[1]
    assert (replica.directory_id, replica.log_end_offset) == (directory(other), -1)


@pytest.mark.parametrize("node_id", [2, 9])
def test_a_second_fetch_takes_the_place_of_the_one_that_waits(node_id: int) -> None:
    """A voter or observer that asks again has given the first request up: it is answered, without records."""
    world, core = leading()
    core.on_request(500, fetch_of(node_id, 1, high_watermark=1, max_wait_ms=100), now_ms=world.now)
    effects = core.on_request(
        501, fetch_of(node_id, 1, high_watermark=1, max_wait_ms=100), now_ms=world.now + 1
    )
    assert [type(one) for one in answers(effects, 500)] == [Respond]
    assert answers(effects, 501) == []
    assert answers(core.on_request_abandoned(501, now_ms=world.now + 2), 501) == []
    assert answers(core.tick(now_ms=world.now + 1000), 501) == []


def test_an_answer_without_records_reads_no_log() -> None:
    world, core = leading()
    core.on_request(500, fetch_of(9, 1, high_watermark=1, max_wait_ms=100), now_ms=world.now)
    assert [type(one) for one in answers(core.tick(now_ms=world.now + 100), 500)] == [Respond]


@pytest.mark.parametrize("failed", [2, 3, 4, 5])
def test_one_request_at_a_time_goes_to_each_voter_by_itself(failed: int) -> None:
    """A voter is asked again after its request failed, whoever else has not answered yet; they are not."""
    core = make(voters=5)
    core.start(now_ms=0)
    now_ms = core.next_deadline_ms()
    assert now_ms is not None
    asked = {each.to: each for each in core.tick(now_ms=now_ms) if isinstance(each, SendRequest)}
    assert set(asked) == {2, 3, 4, 5} and isinstance(core.state.role, Prospective)
    core.on_request_failed(failed, asked[failed].correlation_id, "refused", now_ms=now_ms)
    again_ms = now_ms + core.state.config.retry_backoff_ms
    assert core.next_deadline_ms() == again_ms
    assert core.tick(now_ms=again_ms - 1) == []
    again = [each for each in core.tick(now_ms=again_ms) if isinstance(each, SendRequest)]
    assert [(each.to, type(each.request)) for each in again] == [(failed, VoteRequest)]


@pytest.mark.parametrize(("off_by_ms", "is_doubted"), [(-1, True), (0, False)])
def test_a_failure_before_nine_tenths_of_the_timeout_is_early(off_by_ms: int, is_doubted: bool) -> None:
    core, fetch = follower()
    now_ms = 0
    for _ in range(2):
        now_ms += fetch.timeout_ms * 9 // 10 + off_by_ms
        core.on_request_failed(2, fetch.correlation_id, "refused", now_ms=now_ms)
        now_ms += 1000
        assert isinstance(core.state.role, Follower)
        is_suspect = core.state.role.suspect
        core.state.role.deadline_ms = 10**9
        fetch = sent(core.tick(now_ms=now_ms))
    assert is_suspect == is_doubted


@pytest.mark.parametrize(("epoch", "offset"), [(3, 8), (2, 9), (4, 9), (3, 10)])
def test_only_the_snapshot_that_is_fetched_can_be_rejected(epoch: int, offset: int) -> None:
    core, _ = redirected()
    assert isinstance(core.state.role, Follower)
    core.on_snapshot_rejected(LogPosition(epoch, offset), now_ms=5)
    assert core.state.role.snapshot is not None
    core.on_snapshot_rejected(LogPosition(3, 9), now_ms=5)
    assert core.state.role.snapshot is None


@pytest.mark.parametrize("asked_for", [LogPosition(1, 0), LogPosition(1, 2), LogPosition(2, 1)])
def test_only_a_snapshot_that_is_here_is_served(asked_for: LogPosition) -> None:
    world, core = leading()
    core.on_snapshot_written(LogPosition(1, 1), now_ms=world.now)
    request = FetchSnapshotRequest(
        cluster_id=fetch_of(2, 0).cluster_id,
        replica_id=2,
        replica_directory_id=directory(2),
        epoch=1,
        snapshot=asked_for,
        position=0,
        max_bytes=100,
    )
    (refused,) = answers(core.on_request(500, request, now_ms=world.now), 500)
    assert refused.response.error is RaftError.SNAPSHOT_NOT_FOUND


def test_errors_have_kafkas_codes() -> None:
    """As Kafka's clients know them (`org.apache.kafka.common.protocol.Errors`)."""
    assert {error.name: error.value for error in RaftError} == {
        "NONE": 0,
        "OFFSET_OUT_OF_RANGE": 1,
        "NOT_LEADER_OR_FOLLOWER": 6,
        "REQUEST_TIMED_OUT": 7,
        "BROKER_NOT_AVAILABLE": 8,
        "UNSUPPORTED_VERSION": 35,
        "INVALID_REQUEST": 42,
        "FENCED_LEADER_EPOCH": 74,
        "UNKNOWN_LEADER_EPOCH": 75,
        "INCONSISTENT_VOTER_SET": 94,
        "INVALID_UPDATE_VERSION": 95,
        "SNAPSHOT_NOT_FOUND": 98,
        "POSITION_OUT_OF_RANGE": 99,
        "INCONSISTENT_CLUSTER_ID": 104,
        "INVALID_VOTER_KEY": 125,
        "DUPLICATE_VOTER": 126,
        "VOTER_NOT_FOUND": 127,
    }


@pytest.mark.parametrize("wrong", [2, 4])
def test_only_the_node_that_was_asked_can_answer_or_fail(wrong: int) -> None:
    core = make(voters=5)
    core.start(now_ms=0)
    now_ms = core.next_deadline_ms()
    assert now_ms is not None
    asked = {each.to: each for each in core.tick(now_ms=now_ms) if isinstance(each, SendRequest)}
    correlation_id = asked[3].correlation_id
    granted = VoteResponse(error=RaftError.NONE, epoch=0, leader_id=None, vote_granted=True, pre_vote=True)
    assert core.on_response(wrong, correlation_id, granted, now_ms=now_ms) == []
    assert core.on_request_failed(wrong, correlation_id, "refused", now_ms=now_ms) == []
    assert isinstance(core.state.role, Prospective) and core.state.role.granted == {1}
    core.on_response(3, correlation_id, granted, now_ms=now_ms)
    assert core.state.role.granted == {1, 3}


@pytest.mark.parametrize("leader_id", [2, 3])
def test_a_prospective_voter_follows_a_leader_that_is_new_to_it(leader_id: int) -> None:
    """Not the one that it lost: others still name that one for a while."""
    core, _ = follower()
    now_ms = core.next_deadline_ms()
    while not isinstance(core.state.role, Prospective):
        assert now_ms is not None
        core.tick(now_ms=now_ms)
        now_ms = core.next_deadline_ms()
    assert core.state.known_leader_id == 2
    if leader_id == 3:
        core.state.known_leader_id = None
    (correlation_id,) = [at for at, flight in core.state.in_flight.items() if flight.to == 3]
    refused = VoteResponse(
        error=RaftError.NONE, epoch=4, leader_id=leader_id, vote_granted=False, pre_vote=True
    )
    core.on_response(3, correlation_id, refused, now_ms=now_ms or 0)
    assert core.role == ("follower" if leader_id == 3 else "prospective")


@pytest.mark.parametrize("refusal", [RaftError.INVALID_VOTER_KEY, RaftError.INCONSISTENT_VOTER_SET])
def test_a_voter_that_refuses_for_good_is_named_once(refusal: RaftError) -> None:
    core = make()
    core.start(now_ms=0)
    now_ms = core.next_deadline_ms()
    assert now_ms is not None
    warned = []
    for _ in range(2):
        (asked,) = [
            each for each in core.tick(now_ms=now_ms) if isinstance(each, SendRequest) and each.to == 2
        ]
        answer = VoteResponse(error=refusal, epoch=0, leader_id=None, vote_granted=False, pre_vote=True)
        effects = core.on_response(2, asked.correlation_id, answer, now_ms=now_ms)
        warned += [each.message for each in effects if isinstance(each, Warn)]
        assert isinstance(core.state.role, Prospective)
        core.state.role.rejected.clear()
    assert (
        len(warned) == 1 and f"voter 2 refuses vote requests from this node with {refusal.name}" in warned[0]
    )


def test_the_only_voter_with_another_disk_observes() -> None:
    identity = Identity(cluster_id="c", node_id=1, directory_id=directory(9))
    voters = (Voter(node_id=1, host="127.0.0.1", port=9001, directory_id=directory(1)),)
    core = RaftCore(RaftConfig(), identity, voters, RecoveredLog(), random.Random(1))
    core.start(now_ms=0)
    assert core.is_observer and core.role == "unattached"
    core.tick(now_ms=10**6)
    assert core.role == "unattached"


def test_an_observer_that_finds_no_leader_waits_twice_as_long_each_time() -> None:
    config = RaftConfig(retry_backoff_max_ms=500)
    core = make(node_id=9, config=config)
    now_ms, ceiling_ms = 0, 50
    (asked,) = [each for each in core.start(now_ms=0) if isinstance(each, SendRequest)]
    for _ in range(8):
        due_ms = search_due_ms_without(core, asked.correlation_id, now_ms)
        assert ceiling_ms // 2 <= due_ms - now_ms <= ceiling_ms
        now_ms, ceiling_ms = due_ms, min(500, 2 * ceiling_ms)
        (asked,) = [each for each in core.tick(now_ms=now_ms) if isinstance(each, SendRequest)]


def search_due_ms_without(core: RaftCore, correlation_id: int, now_ms: int) -> int:
    """When an observer asks again whose request failed at once."""
    flight = core.state.in_flight[correlation_id]
    core.on_request_failed(flight.to, correlation_id, "refused", now_ms=now_ms)
    due_ms = core.next_deadline_ms()
    assert due_ms is not None
    return due_ms


@pytest.mark.parametrize(
    ("error", "is_given_up"),
    [
        (RaftError.SNAPSHOT_NOT_FOUND, True),
        (RaftError.POSITION_OUT_OF_RANGE, True),
        (RaftError.INVALID_REQUEST, False),
        (RaftError.NOT_LEADER_OR_FOLLOWER, False),
    ],
)
def test_a_snapshot_that_is_gone_is_not_asked_for_again(error: RaftError, is_given_up: bool) -> None:
    core, request = redirected()
    refused = FetchSnapshotResponse(error=error, epoch=4, leader_id=2)
    assert core.on_response(2, request.correlation_id, refused, now_ms=5) == []
    again = sent(core.tick(now_ms=5 + core.state.config.retry_backoff_ms))
    assert isinstance(again.request, FetchRequest if is_given_up else FetchSnapshotRequest)


def test_a_wall_clock_that_falls_does_not_take_back_that_a_replica_was_caught_up() -> None:
    world, core = leading()
    times = []
    for wall_ms in (5000, 3000, 2000):
        core.wall_ms = wall_ms
        core.on_request(wall_ms, fetch_of(2, core.log_end_offset - (wall_ms < 5000)), now_ms=world.now)
        times.append(core.describe(now_ms=world.now)[1].last_caught_up_wall_ms)
        core.append(Batches.sealed(batch(core.log_end_offset, 1)), now_ms=world.now)
    assert times == [5000, 5000, 5000]


def test_the_page_gives_the_defaults() -> None:
    """The table of timeouts in docs/raft.md."""
    page = (Path(__file__).resolve().parents[3] / "docs" / "raft.md").read_text("utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (\d+) \|", page, re.MULTILINE)
    config = RaftConfig()
    assert len(rows) >= 6
    assert {name: getattr(config, name) for name, _ in rows} == {name: int(value) for name, value in rows}
    assert (config.retry_backoff_ms, config.retry_backoff_max_ms) == (20, 500)
    assert (config.check_quorum_ms, config.fetch_grace_ms, config.keepalive_ms) == (1500, 333, 250)
    assert (config.begin_quorum_ms, config.quiet_voter_ms, config.empty_fetch_pause_ms) == (250, 500, 100)


def test_a_directory_is_made_once() -> None:
    disk = FaultyDisk(random.Random(1))
    create_directory(disk, "/r", cluster_id="c", node_id=1, rng=random.Random(1))
    with pytest.raises(CorruptFileError, match="exists already"):
        create_directory(disk, "/r", cluster_id="c", node_id=1, rng=random.Random(2))


def test_what_its_own_directory_acknowledged_still_counts() -> None:
    world, core = leading(options="pinned=no")
    core.on_request(500, fetch_of(2, 7, last_fetched_epoch=1), now_ms=world.now)
    assert core.describe(now_ms=world.now)[1].log_end_offset == 1


def test_what_is_durable_holds_nothing_back() -> None:
    core = make()
    core.start(now_ms=0)
    ask = VoteRequest(
        cluster_id="c",
        epoch=5,
        candidate_id=2,
        candidate_directory_id=directory(2),
        voter_id=1,
        voter_directory_id=directory(1),
        last_position=LogPosition(0, 0),
        pre_vote=False,
    )
    effects = core.on_request(1, ask, now_ms=1)
    (write,) = [each for each in effects if isinstance(each, PersistQuorumState)]
    assert [each.after for each in effects if isinstance(each, Respond)] == [write.token]
    core.on_quorum_state_persisted(write.token, now_ms=2)
    assert [each.after for each in core.on_request(2, ask, now_ms=3) if isinstance(each, Respond)] == [None]


@pytest.mark.parametrize(("asked", "given"), [(0, 1), (1, 1), (99, 99), (100, 100), (101, 100)])
def test_a_chunk_is_as_large_as_both_sides_allow(asked: int, given: int) -> None:
    world, core = leading(options="snapshot_chunk_bytes=100")
    core.on_snapshot_written(LogPosition(1, 1), now_ms=world.now)
    request = FetchSnapshotRequest(
        cluster_id=fetch_of(2, 0).cluster_id,
        replica_id=2,
        replica_directory_id=directory(2),
        epoch=1,
        snapshot=LogPosition(1, 1),
        position=0,
        max_bytes=asked,
    )
    (chunk,) = [
        each
        for each in core.on_request(500, request, now_ms=world.now)
        if isinstance(each, RespondWithSnapshotChunk)
    ]
    assert chunk.max_bytes == given
