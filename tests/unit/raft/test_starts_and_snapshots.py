"""Starts after a crash, defaults, and snapshots that lie ahead of or behind the log."""

from __future__ import annotations

import pytest

from metaquorum.raft.config import RaftConfig, RecoveredLog
from metaquorum.raft.effects import ResetLog, SendRequest, Warn
from metaquorum.raft.messages import FetchRequest, FetchResponse, FetchSnapshotRequest, RaftError, VoteRequest
from metaquorum.raft.protocol import transitions
from metaquorum.raft.roles import Follower, Prospective
from metaquorum.storage.types import LogPosition
from tests.raft.world import directory
from tests.unit.raft.test_core import make
from tests.unit.raft.test_following import answer, chunk, follower, redirected, sent

# ---- starts and requests --------------------------------------------------------------------------


@pytest.mark.parametrize(("node_id", "leader_id"), [(1, 2), (3, 2), (3, 1), (1, 3)])
def test_a_replica_follows_the_leader_of_its_epoch_after_a_restart(node_id: int, leader_id: int) -> None:
    core = make(node_id=node_id, recovered=RecoveredLog(epoch=4, leader_id=leader_id))
    request = sent(core.start(now_ms=0))
    assert isinstance(core.state.role, Follower)
    assert (core.state.role.leader_id, request.to) == (leader_id, leader_id)


@pytest.mark.parametrize("recovered_epoch", [2, 3])
def test_vote_and_leader_of_an_epoch_that_the_log_has_passed_are_void(recovered_epoch: int) -> None:
    recovered = RecoveredLog(
        epoch=recovered_epoch, leader_id=2, voted_id=2, epochs=((1, 0), (3, 4)), log_end_offset=5
    )
    core = make(recovered=recovered)
    assert core.epoch == 3
    assert (core.state.vote is None) == (recovered_epoch == 2)
    assert (core.state.known_leader_id is None) == (recovered_epoch == 2)


def test_votes_are_asked_of_a_voter_with_its_directory() -> None:
    core = make()
    core.start(now_ms=0)
    deadline = core.next_deadline_ms()
    assert deadline is not None
    asked = [one.request for one in core.tick(now_ms=deadline) if isinstance(one, SendRequest)]
    assert [type(one) for one in asked] == [VoteRequest, VoteRequest]
    for one in asked:
        assert isinstance(one, VoteRequest)
        assert one.voter_directory_id == directory(one.voter_id)
        assert (one.candidate_id, one.candidate_directory_id) == (1, directory(1))
        assert one.last_position == LogPosition(0, 0)


def test_waits_between_elections_grow_with_those_that_failed_up_to_their_ceiling() -> None:
    core = make()
    core.start(now_ms=0)
    now = core.next_deadline_ms() or 0
    core.tick(now_ms=now)
    assert core.state.election_attempts == 0
    for voter in (2, 3):
        core.state.election_attempts = 0
        core.state.role = Prospective(deadline_ms=now, granted={1, voter})
    transitions.become_candidate(core.state, now_ms=now)
    assert core.state.election_attempts == 1
    ceiling = core.state.config.election_backoff_max_ms
    for attempts, most in ((0, 50), (1, 100), (2, 200), (3, 200), (16, 200), (99, 200)):
        core.state.election_attempts = attempts
        drawn = [core.state.backoff_ms() for _ in range(400)]
        assert 0 <= min(drawn) <= 10
        assert most - 10 <= max(drawn) <= min(most, ceiling)


def test_the_defaults_are_those_that_the_page_explains() -> None:
    config = RaftConfig()
    assert (config.election_timeout_ms, config.election_backoff_max_ms) == (300, 200)
    assert (config.fetch_timeout_ms, config.fetch_max_wait_ms) == (1000, 100)
    assert (config.observer_fetch_max_wait_ms, config.request_timeout_ms) == (2000, 1000)
    assert (config.retry_backoff_ms, config.retry_backoff_max_ms) == (20, 500)
    # A leader reads, checks and copies as much for one answer, and nothing else meanwhile.
    assert (config.fetch_max_bytes, config.snapshot_chunk_bytes) == (1_048_576, 1_048_576)
    assert (config.parked_fetches_max, config.pending_reads_max) == (4096, 16384)
    assert (config.observer_session_ms, config.high_watermark_linger_ms) == (300_000, 0)


def test_an_answer_that_says_nothing_says_nothing() -> None:
    bare = FetchResponse(error=RaftError.NONE, epoch=1, leader_id=2)
    assert (bare.records, bare.high_watermark, bare.read_round) == (b"", -1, 0)
    assert (bare.diverging, bare.snapshot) == (None, None)


@pytest.mark.parametrize(("snapshot", "fetches"), [((3, 9), True), ((4, 4), True), ((4, 3), False)])
def test_a_snapshot_ahead_of_the_log_is_fetched_whatever_the_epochs_are(
    snapshot: tuple[int, int], fetches: bool
) -> None:
    """The log's last records may be of a later epoch and not committed: the snapshot's are."""
    core, fetch = follower(((1, 0), (4, 2)), 3)
    effects = core.on_response(2, fetch.correlation_id, answer(snapshot=LogPosition(*snapshot)), now_ms=1)
    asked = [one.request for one in effects if isinstance(one, SendRequest)]
    assert any(isinstance(one, FetchSnapshotRequest) for one in asked) == fetches


def test_a_loaded_snapshot_below_what_is_known_as_committed_changes_nothing() -> None:
    core, request = redirected()
    core.on_response(2, request.correlation_id, chunk(0, b"0123456789"), now_ms=2)
    core.state.log.append(4, 1, 12)
    core.state.log.synced(12)
    core.state.log.high_watermark = 10
    effects = core.on_snapshot_loaded(LogPosition(3, 9), now_ms=3)
    assert not any(isinstance(one, ResetLog) for one in effects)
    assert (core.log_end_offset, core.high_watermark) == (12, 10)


def test_a_node_of_another_cluster_is_as_good_as_none() -> None:
    core, fetch = follower()
    foreign = FetchResponse(error=RaftError.INCONSISTENT_CLUSTER_ID, epoch=99, leader_id=3)
    effects = core.on_response(2, fetch.correlation_id, foreign, now_ms=1)
    assert any(isinstance(one, Warn) and "another cluster" in one.message for one in effects)
    assert isinstance(core.state.role, Follower)
    assert (core.state.role.failures, core.epoch, core.state.role.leader_id) == (1, 4, 2)


def test_while_a_snapshot_loads_a_quarter_of_the_timeout_passes_between_fetches() -> None:
    core, request = redirected()
    core.on_response(2, request.correlation_id, chunk(0, b"0123456789"), now_ms=2)
    quarter = core.state.config.fetch_timeout_ms // 4
    assert not any(isinstance(one, SendRequest) for one in core.tick(now_ms=1 + quarter))
    assert isinstance(sent(core.tick(now_ms=2 + quarter)).request, FetchRequest)
