"""A follower against answers that a well-behaved leader gives only in rare moments, or never."""

from __future__ import annotations

import pytest

from metaquorum.raft.config import RaftConfig, RecoveredLog
from metaquorum.raft.core import RaftCore
from metaquorum.raft.effects import (
    AppendLog,
    FinishSnapshot,
    RaftEffect,
    ResetLog,
    Respond,
    SendRequest,
    TruncateLog,
    Warn,
    WriteSnapshotChunk,
)
from metaquorum.raft.messages import (
    BeginQuorumEpochRequest,
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    RaftError,
    VoteRequest,
    VoteResponse,
)
from metaquorum.raft.roles import Follower
from metaquorum.raft.voters import (
    Endpoint,
    VoterNode,
    VoterSet,
    encode_control_batch,
    kraft_version_record,
    voters_record,
)
from metaquorum.storage.batches.batch import Batches, encode_batch
from metaquorum.storage.types import LogPosition
from tests.raft.world import directory
from tests.unit.raft.test_core import make


def batches(start: int, count: int, epoch: int) -> bytes:
    return b"".join(
        encode_batch(base_offset=start + i, leader_epoch=epoch, timestamp_ms=1, values=[b"x"])
        for i in range(count)
    )


def sent(effects: list[RaftEffect]) -> SendRequest:
    return next(effect for effect in effects if isinstance(effect, SendRequest))


def follower(epochs: tuple[tuple[int, int], ...] = (), end: int = 0) -> tuple[RaftCore, SendRequest]:
    core = make(recovered=RecoveredLog(epoch=4, leader_id=2, epochs=epochs, log_end_offset=end))
    return core, sent(core.start(now_ms=0))


def answer(epoch: int = 4, leader: int = 2, **fields: object) -> FetchResponse:
    return FetchResponse(error=RaftError.NONE, epoch=epoch, leader_id=leader, **fields)  # type: ignore[arg-type]


def begin(core: RaftCore, now: int, epoch: int, leader: int) -> SendRequest:
    request = BeginQuorumEpochRequest(
        cluster_id="c", epoch=epoch, leader_id=leader, voter_id=1, voter_directory_id=directory(1)
    )
    return sent(core.on_request(1, request, now_ms=now))


@pytest.mark.parametrize("synced", [0, 2, 3])
def test_the_high_watermark_stops_where_the_log_was_compared(synced: int) -> None:
    """An unsynced tail of an older epoch lies above the fetch offset; an answer without records skips it. If
    the tail is synced while the answer is on its way, that proves nothing of it."""
    core, fetch = follower()
    core.on_response(2, fetch.correlation_id, answer(records=batches(0, 3, 4)), now_ms=1)
    assert (core.log_end_offset, core.synced_offset) == (3, 0)
    fetch = begin(core, 2, 5, 3)
    assert isinstance(fetch.request, FetchRequest) and fetch.request.fetch_offset == 0
    core.on_log_synced(synced, now_ms=2)
    core.on_response(3, fetch.correlation_id, answer(5, 3, high_watermark=3), now_ms=3)
    assert core.high_watermark <= 0


@pytest.mark.parametrize("named", [-1, 2, 3, 5])
def test_the_high_watermark_never_falls(named: int) -> None:
    """A new leader names none, or a lower one, until it has committed in its epoch."""
    core, fetch = follower()
    core.on_response(2, fetch.correlation_id, answer(records=batches(0, 5, 4), high_watermark=3), now_ms=1)
    assert core.high_watermark == 3
    core.on_log_synced(5, now_ms=2)
    fetch = begin(core, 2, 5, 3)
    core.on_response(3, fetch.correlation_id, answer(5, 3, high_watermark=named), now_ms=3)
    assert core.high_watermark == max(3, named)


def test_a_fetch_names_the_epoch_of_the_record_before_its_offset() -> None:
    """That is the synced end: what is above it may be of a later epoch."""
    core, fetch = follower(((3, 0),), 2)
    core.on_response(2, fetch.correlation_id, answer(records=batches(2, 2, 4)), now_ms=1)
    for now, synced, epoch in ((1000, 2, 3), (2000, 3, 4)):
        core.on_log_synced(synced, now_ms=now)
        request = begin(core, now, 3 + now // 500, 2 + now // 1000 % 2).request
        assert isinstance(request, FetchRequest)
        assert (request.fetch_offset, request.last_fetched_epoch) == (synced, epoch)


@pytest.mark.parametrize("is_chunk", [False, True])
def test_a_leader_that_answers_again_is_doubted_no_more(is_chunk: bool) -> None:
    """Its follower refuses pre-votes again, and counts failures from the first one on."""
    core, request = redirected() if is_chunk else follower()
    for now in (1, 102):
        core.on_request_failed(2, request.correlation_id, "refused", now_ms=now)
        assert isinstance(core.state.role, Follower)
        core.state.role.deadline_ms = 10**9
        request = sent(core.tick(now_ms=now + 100))
    assert core.state.role.suspect and not core.state.role.alive
    good = chunk(0, b"abcd") if is_chunk else answer(records=batches(0, 1, 4))
    core.on_response(2, request.correlation_id, good, now_ms=2000)
    assert core.state.role.alive and core.state.role.failures == 0
    asks = VoteRequest(
        cluster_id="c",
        epoch=5,
        candidate_id=3,
        candidate_directory_id=directory(3),
        voter_id=1,
        voter_directory_id=directory(1),
        last_position=LogPosition(4, 9),
        pre_vote=True,
    )
    core.state.epoch = 5  # as the candidate's: only the leader's silence would count
    effects = core.on_request(9, asks, now_ms=2001)
    (voted,) = [one.response for one in effects if isinstance(one, Respond)]
    assert isinstance(voted, VoteResponse) and not voted.vote_granted


def test_an_answer_that_ends_in_a_later_epoch_is_refused_as_a_whole() -> None:
    core, fetch = follower()
    records = batches(0, 2, 4) + batches(2, 1, 5)
    effects = core.on_response(2, fetch.correlation_id, answer(records=records), now_ms=3)
    (warned,) = [one.message for one in effects if isinstance(one, Warn)]
    assert "were not appended: a batch of epoch 5 in epoch 4" in warned
    assert core.log_end_offset == 0 and not any(isinstance(one, AppendLog) for one in effects)


def test_voters_that_come_a_second_time_are_noted_once() -> None:
    """In an answer to a keep-alive, from before what is synced; what is new in it is noted too."""
    sets = [
        VoterSet(VoterNode(node_id=at, directory_id=directory(at)) for at in range(1, last))
        for last in (4, 5)
    ]
    records = [[kraft_version_record(1), voters_record(sets[0])], [voters_record(sets[1])]]
    whole = b""
    core, fetch = follower()
    for base, told in ((0, records[0]), (2, records[1])):
        whole += encode_control_batch(told, base_offset=base, epoch=4, timestamp_ms=1)
        core.on_response(2, fetch.correlation_id, answer(records=whole), now_ms=1)
        fetch = sent(core.tick(now_ms=1000 + base))
    assert core.state.voter_history.entries == ((1, sets[0]), (2, sets[1]))
    assert core.state.voter_history.previous == sets[0] and core.log_end_offset == 3


def test_an_unsynced_tail_of_an_older_epoch_is_replaced() -> None:
    core, fetch = follower()
    core.on_response(2, fetch.correlation_id, answer(records=batches(0, 3, 4)), now_ms=1)
    fetch = begin(core, 2, 5, 3)
    records = batches(0, 1, 4) + batches(1, 1, 5)
    effects = core.on_response(
        3, fetch.correlation_id, answer(5, 3, high_watermark=2, records=records), now_ms=3
    )
    changes = [effect for effect in effects if isinstance(effect, AppendLog | TruncateLog)]
    assert changes == [
        TruncateLog(end_offset=1),
        AppendLog(batches=Batches.parse(batches(1, 1, 5))),
    ]
    assert (core.high_watermark, core.epochs.entries) == (2, ((4, 0), (5, 1)))


def test_an_early_empty_answer_is_not_asked_for_again_at_once() -> None:
    """A leader whose bound of parked fetches is reached answers at once with nothing."""
    core, fetch = follower()
    effects = core.on_response(2, fetch.correlation_id, answer(), now_ms=1)
    assert not any(isinstance(effect, SendRequest) for effect in effects)
    again = core.tick(now_ms=1 + 5 * core.state.config.retry_backoff_ms)
    assert isinstance(sent(again).request, FetchRequest)


def redirected() -> tuple[RaftCore, SendRequest]:
    core, fetch = follower(((1, 0),), 1)
    effects = core.on_response(2, fetch.correlation_id, answer(snapshot=LogPosition(3, 9)), now_ms=1)
    request = sent(effects)
    assert isinstance(request.request, FetchSnapshotRequest)
    assert (request.request.snapshot, request.request.position) == (LogPosition(3, 9), 0)
    return core, request


def chunk(
    position: int, data: bytes, size: int = 10, snapshot: LogPosition | None = None
) -> FetchSnapshotResponse:
    return FetchSnapshotResponse(
        error=RaftError.NONE,
        epoch=4,
        leader_id=2,
        snapshot=snapshot or LogPosition(3, 9),
        size_bytes=size,
        position=position,
        data=data,
    )


def test_chunks_that_do_not_fit_are_not_written() -> None:
    misfits = [
        chunk(4, b"abcd"),
        chunk(0, b"abcd", snapshot=LogPosition(3, 8)),
        chunk(0, b"x" * 11),
        chunk(0, b""),
    ]
    for misfit in misfits:
        core, request = redirected()
        effects = core.on_response(2, request.correlation_id, misfit, now_ms=2)
        assert not any(isinstance(effect, WriteSnapshotChunk | FinishSnapshot) for effect in effects)
        assert any(isinstance(effect, Warn) and "starting again" in effect.message for effect in effects)
        later = core.tick(now_ms=2 + core.state.config.retry_backoff_ms)
        assert isinstance(sent(later).request, FetchRequest)


def test_a_file_that_changes_its_size_is_fetched_anew() -> None:
    core, request = redirected()
    request = sent(core.on_response(2, request.correlation_id, chunk(0, b"abcd"), now_ms=2))
    effects = core.on_response(2, request.correlation_id, chunk(4, b"efgh", size=12), now_ms=3)
    assert not any(isinstance(effect, WriteSnapshotChunk) for effect in effects)


def load(core: RaftCore, request: SendRequest) -> None:
    effects = core.on_response(2, request.correlation_id, chunk(0, b"0123456789"), now_ms=2)
    assert FinishSnapshot(snapshot=LogPosition(3, 9), size_bytes=10) in effects


def test_a_loaded_snapshot_restarts_the_log() -> None:
    core, request = redirected()
    load(core, request)
    effects = core.on_snapshot_loaded(LogPosition(3, 9), now_ms=3)
    assert ResetLog(position=LogPosition(3, 9)) in effects
    fetch = sent(effects).request
    assert isinstance(fetch, FetchRequest)
    assert (fetch.fetch_offset, fetch.last_fetched_epoch) == (9, 3)


def test_a_snapshot_is_not_installed_over_records_that_were_acknowledged_meanwhile() -> None:
    core, request = redirected()
    load(core, request)
    fetch = begin(core, 3, 5, 3)
    core.on_response(3, fetch.correlation_id, answer(5, 3, records=batches(1, 12, 5)), now_ms=4)
    acknowledged = sent(core.on_log_synced(13, now_ms=5)).request
    assert isinstance(acknowledged, FetchRequest) and acknowledged.fetch_offset == 13
    effects = core.on_snapshot_loaded(LogPosition(3, 9), now_ms=6)
    assert not any(isinstance(effect, ResetLog) for effect in effects)
    assert core.log_end_offset == 13


def test_while_it_loads_it_only_keeps_in_touch() -> None:
    core, request = redirected()
    load(core, request)
    quarter = core.state.config.fetch_timeout_ms // 4
    fetch = sent(core.tick(now_ms=2 + quarter))
    assert isinstance(fetch.request, FetchRequest) and fetch.request.max_bytes == 1
    effects = core.on_response(
        2, fetch.correlation_id, answer(snapshot=LogPosition(4, 20)), now_ms=3 + quarter
    )
    assert not any(isinstance(effect, SendRequest) for effect in effects)
    assert core.on_snapshot_loaded(LogPosition(3, 9), now_ms=4 + quarter)[0] == ResetLog(
        position=LogPosition(3, 9)
    )


@pytest.mark.parametrize(
    "late",
    [
        {"records": batches(1, 1, 1), "high_watermark": 9},
        {"diverging": LogPosition(1, 1), "high_watermark": 9},
        {"snapshot": LogPosition(3, 9)},
    ],
)
def test_an_answer_from_before_the_snapshot_does_nothing_to_the_log_after_it(late: dict[str, object]) -> None:
    """A keep-alive was sent while the snapshot loaded, and its answer comes when the log begins behind it."""
    core, request = redirected()
    core.on_response(2, request.correlation_id, chunk(0, b"0123456789"), now_ms=2)
    quarter = core.state.config.fetch_timeout_ms // 4
    fetch = sent(core.tick(now_ms=3 + quarter))
    assert isinstance(fetch.request, FetchRequest) and fetch.request.fetch_offset == 1
    core.on_snapshot_loaded(LogPosition(3, 9), now_ms=4 + quarter)
    assert (core.log_start_offset, core.log_end_offset) == (9, 9)
    effects = core.on_response(2, fetch.correlation_id, answer(**late), now_ms=5 + quarter)
    assert not any(isinstance(effect, AppendLog | TruncateLog | ResetLog) for effect in effects)
    assert (core.log_start_offset, core.log_end_offset, core.high_watermark) == (9, 9, 9)


@pytest.mark.parametrize("snapshot", [LogPosition(4, 2), LogPosition(4, 3)])
def test_a_snapshot_of_what_the_unsynced_log_holds_is_not_fetched(snapshot: LogPosition) -> None:
    """The fetch said what was synced; a leader that trimmed its log meanwhile answers with a snapshot."""
    core, fetch = follower()
    core.on_response(2, fetch.correlation_id, answer(records=batches(0, 3, 4)), now_ms=1)
    keepalive = sent(core.tick(now_ms=1 + core.state.config.fetch_timeout_ms // 4))
    now = 2 + core.state.config.fetch_timeout_ms // 4
    effects = core.on_response(
        2, keepalive.correlation_id, answer(snapshot=snapshot, high_watermark=3), now_ms=now
    )
    assert effects == []
    following = sent(core.on_log_synced(3, now_ms=now + 1)).request
    assert isinstance(following, FetchRequest) and following.fetch_offset == 3


@pytest.mark.parametrize("snapshot", [LogPosition(4, 4), LogPosition(5, 2)])
def test_a_snapshot_of_what_the_unsynced_log_lacks_is_fetched(snapshot: LogPosition) -> None:
    core, fetch = follower()
    core.on_response(2, fetch.correlation_id, answer(records=batches(0, 3, 4)), now_ms=1)
    keepalive = sent(core.tick(now_ms=1 + core.state.config.fetch_timeout_ms // 4))
    now = 2 + core.state.config.fetch_timeout_ms // 4
    effects = core.on_response(2, keepalive.correlation_id, answer(snapshot=snapshot), now_ms=now)
    request = sent(effects).request
    assert isinstance(request, FetchSnapshotRequest) and request.snapshot == snapshot


def test_a_leader_that_no_one_can_place_is_named_once_with_what_to_do() -> None:
    """An older release says who leads at kraft.version 0, and not where."""
    core = make(node_id=9, voters=0, config=RaftConfig(bootstrap_ids=(-1,)))
    lines = []
    effects, now = core.start(now_ms=0), 0
    for _ in range(2):
        request = sent(effects)
        lines += core.on_response(-1, request.correlation_id, answer(epoch=4, leader=2), now_ms=now)
        now += 1_000
        effects = core.tick(now_ms=now)
    (line,) = [effect.message for effect in lines if isinstance(effect, Warn)]
    assert line.startswith("node 2 leads the quorum, but this node does not know its address")
    assert "controller.quorum.voters" in line
    placed = answer(epoch=4, leader=2, leader_endpoints=(Endpoint("", "10.0.0.2", 9093),))
    effects = core.on_response(-1, sent(effects).correlation_id, placed, now_ms=now)
    assert sent(effects).to == 2
    assert sent(effects).endpoints == placed.leader_endpoints
    assert not [effect for effect in effects if isinstance(effect, Warn)]


@pytest.mark.parametrize(("listener", "counts"), [("", False), ("CONTROLLER", True)])
def test_of_a_configured_voter_another_node_s_configuration_does_not_count(
    listener: str, counts: bool
) -> None:
    """At kraft.version 0 the leader's address comes from a configuration, which may be the older one; from 1
    on it comes from the voters' record, which is newer than any configuration."""
    core = make(node_id=9)
    request = sent(core.start(now_ms=0))
    told = (Endpoint(listener, "10.0.0.2", 9093),)
    effects = core.on_response(request.to, request.correlation_id, answer(leader_endpoints=told), now_ms=0)
    assert sent(effects).to == 2
    assert sent(effects).endpoints == (told if counts else ())


def test_a_configured_voter_follows_no_leader_that_only_other_configurations_name() -> None:
    """Two lists of voters that differ: the one that this node was started with stays in force."""
    core = make(node_id=1, config=RaftConfig(bootstrap_ids=(-1,)))
    request = sent(core.start(now_ms=0))
    told = answer(leader=7, leader_endpoints=(Endpoint("", "10.0.0.7", 9093),))
    core.on_response(request.to, request.correlation_id, told, now_ms=0)
    assert (core.epoch, core.leader_id) == (4, None)
