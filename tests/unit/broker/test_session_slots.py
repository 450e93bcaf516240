"""Who keeps a fetch session where slots are few (KIP-227), and limits of requests that wait."""

from __future__ import annotations

import random

import pytest

from metaquorum.broker.replica.events import DataEffect, DataRespond
from metaquorum.broker.replica.fetch_sessions import EVICTION_MS, FetchSession, SessionCache
from metaquorum.broker.replica.requests import partitioned
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.requests.data import CONSUMER, FetchPartition, FetchRequest, ListOffsetsRequest
from metaquorum.raft.effects import Outbox
from tests.unit.broker.test_replica_isr import leader

FOLLOWER = 7
NOW_MS = 10 * EVICTION_MS


def begin(
    cache: SessionCache, who: int, size: int, now_ms: int
) -> tuple[FetchSession | None, FetchSession | None]:
    parts = tuple(
        FetchPartition(key=(bytes(16), index), fetch_offset=0, max_bytes=1) for index in range(size)
    )
    request = FetchRequest(
        replica_id=who, max_wait_ms=0, min_bytes=1, max_bytes=1, session_epoch=0, partitions=parts
    )
    session, evicted = cache.begin(request, now_ms)
    if session is not None:
        session.name(parts)
    return session, evicted


@pytest.mark.parametrize("unused_ms", [0, EVICTION_MS, EVICTION_MS + 1])
@pytest.mark.parametrize("age_ms", [0, EVICTION_MS, EVICTION_MS + 1])
@pytest.mark.parametrize("asks", [(CONSUMER, 1), (CONSUMER, 2), (CONSUMER, 3), (FOLLOWER, 1), (FOLLOWER, 3)])
@pytest.mark.parametrize("holds", [(CONSUMER, 2), (FOLLOWER, 2)])
def test_the_last_slot_goes_to_who_needs_it_more(
    holds: tuple[int, int], asks: tuple[int, int], age_ms: int, unused_ms: int
) -> None:
    cache = SessionCache(1, random.Random(1))
    held, _ = begin(cache, *holds, NOW_MS - max(age_ms, unused_ms))
    assert held is not None
    held.used_ms = NOW_MS - unused_ms
    is_stale = unused_ms > EVICTION_MS
    is_old = max(age_ms, unused_ms) > EVICTION_MS
    if holds[0] == asks[0]:
        gives_way = is_stale or (is_old and asks[1] > holds[1])
    else:
        gives_way = is_stale or asks[0] == FOLLOWER
    begun, evicted = begin(cache, *asks, NOW_MS)
    assert (begun is not None, evicted) == (gives_way, held if gives_way else None)
    assert (len(cache), cache.evictions) == (1, int(gives_way))


def test_of_several_the_one_that_was_not_used_for_longest_goes_first() -> None:
    cache = SessionCache(3, random.Random(1))
    sessions = [begin(cache, CONSUMER, size, 0)[0] for size in (1, 2, 3)]
    for session, used_ms in zip(sessions, (5, 3, 4), strict=True):
        assert session is not None
        session.used_ms = used_ms
    order = [begin(cache, CONSUMER, 1, EVICTION_MS + 6)[1] for _ in range(3)]
    assert order == [sessions[1], sessions[2], sessions[0]]


def test_a_look_up_too_many_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitioned, "WAITING_MAX", 0)
    out: Outbox[DataEffect] = Outbox()
    requests = partitioned.Offsets(lambda key: pytest.fail("looked up"), lambda: 1, out)
    requests.handle("caller", ListOffsetsRequest(partitions=()))
    (refused,) = out.take()
    assert isinstance(refused, DataRespond) and refused.key == "caller"
    assert isinstance(refused.response, ApiError)
    assert refused.response.code is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert "0 offset lookups are already waiting" in str(refused.response)
    assert len(requests) == 0


def test_the_high_watermark_is_never_before_the_log() -> None:
    replica = leader(isr=(1, 2), records=3)
    assert replica.partition.high_watermark < 2
    replica.trim(2)
    assert replica.partition.high_watermark == 2
