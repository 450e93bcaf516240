"""Requests and responses of Raft for tests of transports, and what collects a transport's events."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from metaquorum.raft.messages import (
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
    EndQuorumEpochRequest,
    EndQuorumEpochResponse,
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    RaftError,
    RaftRequest,
    RaftResponse,
    VoteRequest,
    VoteResponse,
)
from metaquorum.raft.voters import PreferredCandidate
from metaquorum.storage.types import LogPosition

DIRECTORY = bytes(range(16))
PATIENT_MS = 30_000


def fetch(offset: int = 0) -> FetchRequest:
    return FetchRequest(
        cluster_id="c",
        replica_id=1,
        replica_directory_id=DIRECTORY,
        epoch=3,
        fetch_offset=offset,
        last_fetched_epoch=2,
        high_watermark=-1,
        max_wait_ms=100,
        max_bytes=1 << 20,
    )


def fetched(high_watermark: int = -1, records: bytes = b"") -> FetchResponse:
    return FetchResponse(
        error=RaftError.NONE, epoch=3, leader_id=2, high_watermark=high_watermark, records=records
    )


async def until(condition: Callable[[], bool]) -> None:
    """Returns when this is so."""
    async with asyncio.timeout(60):
        for _ in iter(condition, True):
            await asyncio.sleep(0.001)


class Sink:
    """Collects what a transport reports; `next` waits for the next event."""

    def __init__(self) -> None:
        self.events: asyncio.Queue[Any] = asyncio.Queue()
        self.accepts = True

    def __call__(self, event: Any) -> bool:
        if self.accepts:
            self.events.put_nowait(event)
        return self.accepts

    async def next(self, kind: type) -> Any:
        event = await asyncio.wait_for(self.events.get(), 60)
        assert isinstance(event, kind), event
        return event


EXCHANGES: list[tuple[RaftRequest, RaftResponse]] = [
    (
        VoteRequest(
            cluster_id="c",
            epoch=7,
            candidate_id=1,
            candidate_directory_id=DIRECTORY,
            voter_id=2,
            voter_directory_id=b"",
            last_position=LogPosition(6, 1 << 40),
            pre_vote=True,
        ),
        VoteResponse(error=RaftError.NONE, epoch=7, leader_id=None, vote_granted=True, pre_vote=True),
    ),
    (
        BeginQuorumEpochRequest(
            cluster_id="c", epoch=7, leader_id=0, voter_id=2, voter_directory_id=DIRECTORY
        ),
        BeginQuorumEpochResponse(error=RaftError.NONE, epoch=0, leader_id=0),
    ),
    (
        EndQuorumEpochRequest(
            cluster_id="c",
            epoch=7,
            leader_id=0,
            preferred_candidates=(PreferredCandidate(3, DIRECTORY), PreferredCandidate(1, b"")),
        ),
        EndQuorumEpochResponse(error=RaftError.FENCED_LEADER_EPOCH, epoch=8, leader_id=None),
    ),
    (fetch(1 << 40), fetched(0, b"batch" * 1000)),
    (
        fetch(5),
        FetchResponse(
            error=RaftError.NONE, epoch=9, leader_id=0, log_start_offset=4, diverging=LogPosition(0, 0)
        ),
    ),
    (
        fetch(5),
        FetchResponse(error=RaftError.NONE, epoch=9, leader_id=0, snapshot=LogPosition(2, 17)),
    ),
    (
        FetchSnapshotRequest(
            cluster_id="c",
            replica_id=1,
            replica_directory_id=DIRECTORY,
            epoch=9,
            snapshot=LogPosition(2, 17),
            position=1 << 33,
            max_bytes=1 << 20,
        ),
        FetchSnapshotResponse(
            error=RaftError.NONE,
            epoch=9,
            leader_id=1,
            snapshot=LogPosition(2, 17),
            size_bytes=1 << 34,
            position=1 << 33,
            data=bytes(range(256)),
        ),
    ),
]
