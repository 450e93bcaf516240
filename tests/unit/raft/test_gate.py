"""Effects wait for the hard state that they depend on, and for nothing else."""

from __future__ import annotations

import pytest

from metaquorum.raft.effects import (
    AppendLog,
    EffectGate,
    PersistQuorumState,
    RaftEffect,
    ResetLog,
    Respond,
    RespondWithRecords,
    RespondWithSnapshotChunk,
    SendRequest,
    TruncateLog,
    Warn,
)
from metaquorum.raft.messages import FetchRequest, FetchResponse, FetchSnapshotResponse, RaftError
from metaquorum.storage.batches.batch import NO_BATCHES
from metaquorum.storage.types import LogPosition


def persist(token: int) -> PersistQuorumState:
    return PersistQuorumState(
        token=token, epoch=token, leader_id=None, voted_id=None, voted_directory_id=None
    )


def respond(key: int, after: int | None = None) -> Respond:
    return Respond(key=key, response=FetchResponse(error=RaftError.NONE, epoch=1, leader_id=1), after=after)


def records(key: int, read_to: int, after: int | None) -> RespondWithRecords:
    return RespondWithRecords(
        key=key,
        response=FetchResponse(error=RaftError.NONE, epoch=1, leader_id=1, high_watermark=3),
        read_from=0,
        read_to=read_to,
        max_bytes=100,
        after=after,
    )


APPEND = AppendLog(batches=NO_BATCHES)
FETCH = FetchRequest(
    cluster_id="c",
    replica_id=1,
    replica_directory_id=b"",
    epoch=1,
    fetch_offset=0,
    last_fetched_epoch=0,
    high_watermark=-1,
    max_wait_ms=1,
    max_bytes=1,
    read_round=0,
)


def test_what_depends_on_nothing_passes_in_order() -> None:
    gate = EffectGate()
    effects: list[RaftEffect] = [persist(1), APPEND, respond(7), Warn(message="x"), TruncateLog(end_offset=2)]
    assert gate.push(effects) == effects
    assert len(gate) == 0


def test_what_depends_waits_and_is_released_in_order() -> None:
    gate = EffectGate()
    assert gate.push([persist(1), respond(1, after=1), APPEND]) == [persist(1), APPEND]
    assert gate.push([persist(2), respond(2, after=2), respond(3, after=1)]) == [persist(2)]
    assert len(gate) == 3
    assert gate.persisted(1) == [respond(1, after=1), respond(3, after=1)]
    assert gate.persisted(2) == [respond(2, after=2)]
    assert gate.push([respond(4, after=2)]) == [respond(4, after=2)]


def test_a_later_write_covers_earlier_ones() -> None:
    gate = EffectGate()
    gate.push([respond(1, after=1), respond(2, after=2)])
    assert gate.persisted(2) == [respond(1, after=1), respond(2, after=2)]


def test_equal_effects_are_each_released_once() -> None:
    gate = EffectGate()
    gate.push([respond(1, after=1), respond(1, after=1)])
    assert len(gate.persisted(1)) == 2
    assert gate.persisted(1) == []


@pytest.mark.parametrize("cut", [TruncateLog(end_offset=2), ResetLog(position=LogPosition(1, 9))])
def test_a_cut_changes_nothing_that_waits_but_records_that_it_takes(cut: TruncateLog | ResetLog) -> None:
    """Requests, other answers and chunks of snapshots are carried out as they are, in their order."""
    gate = EffectGate()
    answer = FetchSnapshotResponse(
        error=RaftError.NONE, epoch=1, leader_id=1, snapshot=LogPosition(1, 9), position=0
    )
    waiting: list[RaftEffect] = [
        SendRequest(to=2, correlation_id=3, request=FETCH, timeout_ms=5, after=1),
        records(1, read_to=1, after=2),
        RespondWithSnapshotChunk(
            key=4, response=answer, snapshot=LogPosition(1, 9), position=0, max_bytes=9, after=1
        ),
        respond(2, after=1),
        records(3, read_to=4, after=2),
    ]
    assert gate.push([*waiting, cut]) == [cut]
    assert gate.persisted(1) == [waiting[0], waiting[2], waiting[3]]
    kept, lost = gate.persisted(2)
    assert (kept == waiting[1]) == isinstance(cut, TruncateLog)
    assert isinstance(lost, Respond) and (lost.key, lost.after) == (3, 2)
    assert isinstance(lost.response, FetchResponse)
    assert (lost.response.error, lost.response.leader_id) == (RaftError.NOT_LEADER_OR_FOLLOWER, None)
    assert (lost.response.records, lost.response.high_watermark) == (b"", -1)


def test_records_that_were_cut_are_not_read_any_more() -> None:
    gate = EffectGate()
    gate.push([records(1, read_to=4, after=1), records(2, read_to=2, after=1)])
    assert gate.push([TruncateLog(end_offset=2)]) == [TruncateLog(end_offset=2)]
    first, second = gate.persisted(1)
    assert isinstance(first, Respond) and first.key == 1
    assert first.response.error is RaftError.NOT_LEADER_OR_FOLLOWER
    assert second == records(2, read_to=2, after=1)
    gate.push([records(3, read_to=1, after=2), ResetLog(position=LogPosition(1, 9))])
    assert [type(effect) for effect in gate.persisted(2)] == [Respond]
