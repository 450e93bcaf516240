"""Equality and bounds from both sides: ids, positions and directories that are lower and higher, times just
before a bound and on it."""

from __future__ import annotations

import pytest

from metaquorum.raft.effects import Respond, SendRequest
from metaquorum.raft.messages import FetchSnapshotRequest, RaftError, VoteRequest
from metaquorum.raft.state.roles import Follower, Prospective
from metaquorum.storage.types import LogPosition
from tests.raft.world import directory
from tests.unit.raft.test_core import make
from tests.unit.raft.test_following import follower, redirected, sent
from tests.unit.raft.test_timers_and_replicas import answers, fetch_of, leading


@pytest.mark.parametrize("other", [0, 1, 3, 9])
def test_what_another_directory_acknowledged_does_not_count(other: int) -> None:
    """A voter without a pinned directory comes back with another disk; its fetch does not match the log."""
    world, core = leading(options="pinned=no")
    assert core.describe(world.now)[1].log_end_offset == 1
    request = fetch_of(2, 7, last_fetched_epoch=1, replica_directory_id=directory(other))
    core.on_request(world.now, 500, request)
    replica = core.describe(world.now)[1]
    assert (replica.directory_id, replica.log_end_offset) == (directory(other), -1)


@pytest.mark.parametrize("node_id", [2, 9])
def test_a_second_fetch_takes_the_place_of_the_one_that_waits(node_id: int) -> None:
    """A voter or observer that asks again has given the first request up: it is answered, without records."""
    world, core = leading()
    core.on_request(world.now, 500, fetch_of(node_id, 1, high_watermark=1, max_wait_ms=100))
    effects = core.on_request(world.now + 1, 501, fetch_of(node_id, 1, high_watermark=1, max_wait_ms=100))
    assert [type(one) for one in answers(effects, 500)] == [Respond]
    assert answers(effects, 501) == []
    assert answers(core.on_request_abandoned(world.now + 2, 501), 501) == []
    assert answers(core.tick(world.now + 1000), 501) == []


def test_an_answer_without_records_reads_no_log() -> None:
    world, core = leading()
    core.on_request(world.now, 500, fetch_of(9, 1, high_watermark=1, max_wait_ms=100))
    assert [type(one) for one in answers(core.tick(world.now + 100), 500)] == [Respond]


@pytest.mark.parametrize("failed", [2, 3, 4, 5])
def test_one_request_at_a_time_goes_to_each_voter_by_itself(failed: int) -> None:
    """A voter is asked again after its request failed, whoever else has not answered yet; they are not."""
    core = make(voters=5)
    core.start(0)
    now_ms = core.next_deadline_ms()
    assert now_ms is not None
    asked = {each.to: each for each in core.tick(now_ms) if isinstance(each, SendRequest)}
    assert set(asked) == {2, 3, 4, 5} and isinstance(core.state.role, Prospective)
    core.on_request_failed(now_ms, failed, asked[failed].correlation_id, "refused")
    again_ms = now_ms + core.state.config.retry_backoff_ms
    assert core.next_deadline_ms() == again_ms
    assert core.tick(again_ms - 1) == []
    again = [each for each in core.tick(again_ms) if isinstance(each, SendRequest)]
    assert [(each.to, type(each.request)) for each in again] == [(failed, VoteRequest)]


@pytest.mark.parametrize(("off_by_ms", "is_doubted"), [(-1, True), (0, False)])
def test_a_failure_before_nine_tenths_of_the_timeout_is_early(off_by_ms: int, is_doubted: bool) -> None:
    core, fetch = follower()
    now_ms = 0
    for _ in range(2):
        now_ms += fetch.timeout_ms * 9 // 10 + off_by_ms
        core.on_request_failed(now_ms, 2, fetch.correlation_id, "refused")
        now_ms += 1000
        assert isinstance(core.state.role, Follower)
        is_suspect = core.state.role.suspect
        core.state.role.deadline_ms = 10**9
        fetch = sent(core.tick(now_ms))
    assert is_suspect == is_doubted


@pytest.mark.parametrize(("epoch", "offset"), [(3, 8), (2, 9), (4, 9), (3, 10)])
def test_only_the_snapshot_that_is_fetched_can_be_rejected(epoch: int, offset: int) -> None:
    core, _ = redirected()
    assert isinstance(core.state.role, Follower)
    core.on_snapshot_rejected(5, LogPosition(epoch, offset))
    assert core.state.role.snapshot is not None
    core.on_snapshot_rejected(5, LogPosition(3, 9))
    assert core.state.role.snapshot is None


@pytest.mark.parametrize("asked_for", [LogPosition(1, 0), LogPosition(1, 2), LogPosition(2, 1)])
def test_only_a_snapshot_that_is_here_is_served(asked_for: LogPosition) -> None:
    world, core = leading()
    core.on_snapshot_written(world.now, LogPosition(1, 1))
    request = FetchSnapshotRequest(
        cluster_id=fetch_of(2, 0).cluster_id,
        replica_id=2,
        replica_directory_id=directory(2),
        epoch=1,
        snapshot=asked_for,
        position=0,
        max_bytes=100,
    )
    (refused,) = answers(core.on_request(world.now, 500, request), 500)
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
