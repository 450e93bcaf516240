"""Every answer of a leader says who leads, in which epoch, where it is and how far its log goes; what a good
answer proves, whatever it is an answer to; what a leader writes down of others."""

from __future__ import annotations

from typing import Any

import pytest

from metaquorum.metadata.records.codec import decode_control
from metaquorum.metadata.records.control import LeaderChangeMessage, LeaderVoter
from metaquorum.raft.config import RecoveredLog
from metaquorum.raft.core import RaftCore
from metaquorum.raft.effects import NoteCommitted, Respond, RespondWithRecords
from metaquorum.raft.messages import FetchRequest, FetchResponse, FetchSnapshotRequest, RaftError
from metaquorum.raft.roles import Follower, Leader
from metaquorum.raft.voters import encode_control_batch, leader_change_record
from metaquorum.storage.batches.batch import Batches, iter_batches
from metaquorum.storage.types import LogPosition
from tests.raft.world import World, directory
from tests.unit.raft.test_core import batch, make
from tests.unit.raft.test_following import answer, batches, chunk, redirected, sent
from tests.unit.raft.test_timers_and_replicas import answers, fetch_of, leading

OBSERVER = 9


def asked(core: RaftCore, request: FetchRequest) -> FetchResponse:
    (found,) = answers(core.on_request(500, request, now_ms=7), 500)
    assert isinstance(found, Respond | RespondWithRecords)
    assert isinstance(found.response, FetchResponse)
    return found.response


def trimmed_leader() -> RaftCore:
    """Node 1 leads epoch 1; its log begins at 3, and a snapshot ends at 4."""
    world, core = leading()
    for at in range(1, 6):
        core.append(Batches.sealed(batch(at, 1)), now_ms=world.now)
    core.on_log_synced(6, now_ms=world.now)
    for node_id in (2, 3):
        core.on_request(node_id, fetch_of(node_id, 6), now_ms=world.now)
    core.on_snapshot_written(LogPosition(1, 4), now_ms=world.now)
    core.on_log_trimmed(3, now_ms=world.now)
    return core


KINDS: dict[str, dict[str, Any]] = {
    "records": {"fetch_offset": 4, "last_fetched_epoch": 1},
    "nothing new": {"fetch_offset": 6, "last_fetched_epoch": 1, "high_watermark": 6},
    "diverges": {"fetch_offset": 9, "last_fetched_epoch": 1},
    "snapshot": {"fetch_offset": 1, "last_fetched_epoch": 1},
}


@pytest.mark.parametrize("replica", [2, OBSERVER, -1])
@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_without_error_says_everything_of_its_leader(kind: str, replica: int) -> None:
    core = trimmed_leader()
    core.request_read(1, now_ms=7)
    assert isinstance(core.state.role, Leader)
    fields = {"fetch_offset": 0, **KINDS[kind]}
    offset = fields.pop("fetch_offset")
    if replica == 2:  # a voter that would have forgotten what it acknowledged is refused
        core.state.acknowledged.clear()
        core.state.role.view.voters[2].highest_acked_offset = 0
    found = asked(core, fetch_of(replica, offset, **fields))
    assert (found.error, found.epoch, found.leader_id) == (RaftError.NONE, 1, 1)
    assert (found.high_watermark, found.log_start_offset) == (6, 3)
    assert found.read_round == core.state.role.view.reads.round > 0
    assert found.leader_endpoints == core.state.leader_endpoints_for(replica)
    assert bool(found.leader_endpoints) == (replica != 2)  # a voter is configured with them
    assert (found.diverging is not None) == (kind == "diverges")
    assert (found.snapshot is not None) == (kind == "snapshot")


@pytest.mark.parametrize("replica", [2, OBSERVER, -1])
@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"cluster_id": "another"}, RaftError.INCONSISTENT_CLUSTER_ID),
        ({"epoch": 0}, RaftError.FENCED_LEADER_EPOCH),
        ({"epoch": 2}, RaftError.UNKNOWN_LEADER_EPOCH),
        ({"fetch_offset": -1}, RaftError.INVALID_REQUEST),
    ],
)
def test_a_refusal_says_who_leads(replica: int, fields: dict[str, Any], error: RaftError) -> None:
    core = trimmed_leader()
    more = dict(fields)
    found = asked(core, fetch_of(replica, more.pop("fetch_offset", 4), **more))
    assert (found.error, found.epoch, found.leader_id) == (error, 1, 1)
    assert found.leader_endpoints == core.state.leader_endpoints_for(replica)


@pytest.mark.parametrize("epoch", [0, 1])
def test_what_a_new_cluster_was_formatted_with_is_no_snapshot_to_fetch(epoch: int) -> None:
    """Its file ends at offset 0: it is here, and each replica has its own."""
    bootstrap = LogPosition(epoch, 0)
    core = make(voters=1, recovered=RecoveredLog(snapshots=(bootstrap,)))
    core.start(now_ms=0)
    core.on_log_synced(core.log_end_offset, now_ms=0)
    request = FetchSnapshotRequest(
        cluster_id="c",
        replica_id=OBSERVER,
        replica_directory_id=directory(OBSERVER),
        epoch=core.epoch,
        snapshot=bootstrap,
        position=0,
        max_bytes=100,
    )
    (refused,) = answers(core.on_request(500, request, now_ms=1), 500)
    assert refused.response.error is RaftError.SNAPSHOT_NOT_FOUND


@pytest.mark.parametrize("kind", ["chunk", "fetch"])
def test_a_good_answer_ends_a_series_of_failures(kind: str) -> None:
    """One quick failure is no proof of a dead leader, and neither is one before and one after an answer."""
    core, request = redirected()
    now = 2
    core.on_request_failed(2, request.correlation_id, "connection reset", now_ms=now)
    assert isinstance(core.state.role, Follower)
    core.state.role.snapshot = core.state.role.snapshot if kind == "chunk" else None
    now += 1000
    core.state.role.deadline_ms = 10**9
    request = sent(core.tick(now_ms=now))
    assert core.state.role.failures == 1
    good: Any = chunk(0, b"abcd") if kind == "chunk" else answer(records=batches(1, 1, 4))
    found = core.on_response(2, request.correlation_id, good, now_ms=now)
    again = sent([*found, *core.on_log_synced(core.log_end_offset, now_ms=now), *core.tick(now_ms=now + 500)])
    core.on_request_failed(2, again.correlation_id, "connection reset", now_ms=now + 501)
    assert isinstance(core.state.role, Follower)
    assert (core.state.role.failures, core.state.role.suspect) == (1, False)


def notes(effects: list[Any]) -> list[NoteCommitted]:
    return [one for one in effects if isinstance(one, NoteCommitted)]


def test_a_leader_writes_down_what_the_others_have_acknowledged() -> None:
    """In its durable notes, and never more than is committed."""
    world: World
    world, core = leading()
    for at in range(1, 4):
        core.append(Batches.sealed(batch(at, 1)), now_ms=world.now)
    effects = core.on_log_synced(4, now_ms=world.now)
    effects += core.on_request(500, fetch_of(2, 4), now_ms=world.now)
    effects += core.on_request(501, fetch_of(3, 2), now_ms=world.now)
    core.state.note_times.next_durable_ms = world.now + 1
    effects += core.tick(now_ms=world.now + 1)
    assert isinstance(core.state.role, Leader)  # who resigns remembers it, too
    durable = [one for one in notes(effects) if one.durably]
    assert durable
    assert [(one.directory_id, one.offset, one.epoch) for one in durable[-1].acknowledged] == [
        (directory(2), 4, 1),
        (directory(3), 2, 1),
    ]
    assert all(not one.acknowledged for one in notes(effects) if not one.durably)


@pytest.mark.parametrize(
    ("offset", "epoch", "known", "common"),
    [
        (1, 1, 6, None),  # before this log's start: it may have the same up to this log's end
        (1, 1, 7, 6),
        (4, 0, 3, None),  # of an epoch before all that is here: other records from this log's start on
        (4, 0, 4, 3),
        (3, 0, 3, None),
        (3, 0, 4, 3),
        (9, 1, 6, None),  # beyond this log's end
        (9, 1, 7, 6),
        (5, 1, 6, None),  # a part of it
        (5, 1, 7, 6),
    ],
)
def test_a_replica_that_knows_more_than_it_shares_with_the_leader_proves_a_loss(
    offset: int, epoch: int, known: int, common: int | None
) -> None:
    """Whatever the answer is: a snapshot, an epoch to go back to, or records. The newest fetch counts."""
    core = trimmed_leader()
    for high_watermark in (known, 0, known):
        asked(core, fetch_of(OBSERVER, offset, last_fetched_epoch=epoch, high_watermark=high_watermark))
        told = [(one.node_id, one.known_offset, one.common_offset) for one in core.losses]
        is_lost = common is not None and high_watermark == known
        assert told == ([(OBSERVER, known, common)] if is_lost else [])


@pytest.mark.parametrize(("known", "common"), [(3, None), (4, 3)])
def test_logs_that_diverge_share_what_is_before_that(known: int, common: int | None) -> None:
    """The replica ends at 5 in epoch 2; this log has that epoch up to 3."""
    recovered = RecoveredLog(epoch=4, epochs=((2, 0), (4, 3)), log_end_offset=6)
    core = make(voters=1, recovered=recovered)
    core.start(now_ms=0)
    core.on_log_synced(core.log_end_offset, now_ms=0)
    request = fetch_of(OBSERVER, 5, core.epoch, last_fetched_epoch=2, high_watermark=known, cluster_id="c")
    assert asked(core, request).diverging == LogPosition(2, 3)
    assert [one.common_offset for one in core.losses] == ([] if common is None else [common])


# The record that begins an epoch is what Kafka's schema says.


@pytest.mark.parametrize(
    "voters", [(1,), (3000, 3001, 3002), tuple(range(126)), tuple(range(127)), tuple(range(300))]
)
def test_the_codec_of_the_table_reads_it(voters: tuple[int, ...]) -> None:
    change = leader_change_record(leader_id=voters[-1], voter_ids=voters, granting_ids=voters[1:])
    data = encode_control_batch([change], base_offset=7, epoch=5, timestamp_ms=1234)
    (batch,) = iter_batches(data)
    header = batch.header
    assert (header.base_offset, header.leader_epoch, header.is_control) == (7, 5, True)
    assert (header.base_timestamp_ms, header.next_offset) == (1234, 8)
    (record,) = batch.records()
    assert record.key is not None and record.value is not None
    assert decode_control(record.key, record.value) == LeaderChangeMessage(
        leader_id=voters[-1],
        voters=tuple(LeaderVoter(voter_id=at) for at in voters),
        granting_voters=tuple(LeaderVoter(voter_id=at) for at in voters[1:]),
    )
