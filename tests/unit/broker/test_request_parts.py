"""Parts of requests that wait, by themselves: deadlines, fetch sessions, quotas of replication, rates."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaquorum.broker.replica.controller_requests import Assignments
from metaquorum.broker.replica.deadlines import Deadlines
from metaquorum.broker.replica.events import DataEffect, DataRespond
from metaquorum.broker.replica.fetch_sessions import EVICTION_MS, LAST_EPOCH, FetchSession, SessionCache
from metaquorum.broker.replica.fetchers import Throttle
from metaquorum.broker.replica.requests import partitioned
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image import LOST, MetadataImage
from metaquorum.metadata.node_configs import ReplicaConfig
from metaquorum.metadata.records import types as r
from metaquorum.metadata.replay import ReplayState, replay_records
from metaquorum.metadata.requests.data import (
    CONSUMER,
    FetchPartition,
    FetchRequest,
    ListOffsetsRequest,
    PartitionKey,
)
from metaquorum.metadata.requests.partitions import AssignmentResult, AssignReplicasToDirsResponse
from metaquorum.metadata.requests.rates import QuotaWindows, Rate
from metaquorum.raft.effects import Outbox
from tests.unit.broker.test_replica_isr import leader

ITEM, TIME = st.integers(0, 5), st.integers(0, 30)
STEP = st.one_of(
    st.tuples(st.sampled_from(["arm", "arm_earlier"]), ITEM, TIME),
    st.tuples(st.just("disarm"), ITEM),
    st.tuples(st.just("take_due"), TIME, st.sampled_from([None, 0, 1, 2])),
    st.tuples(st.just("many")),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(STEP, max_size=25))
def test_deadlines_are_a_time_for_each_item(steps: list[tuple[Any, ...]]) -> None:
    """Against a plain table; of several that are due at once, the one that was armed first comes first."""
    made: Deadlines[int] = Deadlines()
    known: dict[int, tuple[int, int]] = {}
    for serial, (name, *given_) in enumerate(steps):
        if name == "many":
            for at in range(80):  # what was disarmed does not pile up
                made.arm(99, at)
                made.disarm(99)
            assert len(made._heap) <= 64 + 4 * len(known) + 1
        elif name == "disarm":
            made.disarm(given_[0])
            known.pop(given_[0], None)
        elif name == "take_due":
            now, limit = given_
            due = sorted((when, item) for item, when in known.items() if when[0] <= now)
            chosen = [item for _, item in due][:limit]
            assert made.take_due(now, limit) == chosen
            for item in chosen:
                del known[item]
        else:
            item, when = given_
            getattr(made, name)(item, when)
            before = known.get(item)
            if before is None or (when < before[0] if name == "arm_earlier" else when != before[0]):
                known[item] = when, serial
        assert made.next_ms() == min((when for when, _ in known.values()), default=None)
        assert len(made) == len(known)
        assert [item in made for item in range(6)] == [item in known for item in range(6)]


# ---- fetch sessions -------------------------------------------------------------------------

A, B, C = keys = [(bytes(16), at) for at in range(3)]


def part(key: PartitionKey, offset: int = 0) -> FetchPartition:
    return FetchPartition(key=key, fetch_offset=offset, max_bytes=1)


def session(who: int = 4) -> FetchSession:
    made = FetchSession(1, who, 50)
    made.name(tuple(part(key) for key in keys))
    return made


def test_what_a_session_looks_at_and_in_which_order() -> None:
    made = session()
    assert list(made.fresh) == keys and not made.is_content(A)
    made.put_off(A)
    assert list(made.fresh) == [B, C, A]
    made.go_first([C, B])
    assert list(made.fresh) == [C, B, A]
    made.fresh = {}
    assert made.is_content(A) and not made.is_content((bytes(16), 9))
    assert made.mark_changed(B) and list(made.fresh) == [B] and not made.is_content(B)
    assert not made.mark_changed((bytes(16), 9)) and list(made.fresh) == [B]
    made.put_off(C)
    assert list(made.fresh) == [B, C]


def test_what_was_told_waits_until_the_answer_has_arrived() -> None:
    made = session()
    made.fresh = {}
    made.answered(A, (5, 5, 0), pause=True)
    made.answered(B, (5, 5, 0), pause=False)
    assert not made.mark_changed(A) and not made.is_content(A) and made.is_content(B)
    assert made.fresh == {}
    made.resume()
    assert list(made.fresh) == [A] and made.mark_changed(A)
    made.answered(C, (5, 5, 0), pause=True)
    made.name((part(C, 7),))
    assert made.partitions[C].fetch_offset == 7 and made.paused == {}
    assert C in made.fresh


def test_they_are_served_again_in_the_order_in_which_they_were_told() -> None:
    many = [(bytes([at]) * 16, at) for at in (3, 1, 4, 0, 5, 9, 2, 6)]
    made = session()
    made.name(tuple(part(key, 0) for key in sorted(many)))
    made.fresh = {}
    for key in many:
        made.answered(key, (5, 5, 0), pause=True)
    made.resume()
    assert list(made.fresh) == many


def test_another_head_alone_can_wait_for_the_next_answer() -> None:
    made = session()
    made.looked(A, (1, 1, 0))
    assert list(made.late) == [A]
    made.answered(A, (1, 1, 0), pause=False)
    assert made.late == {} and made.last_answered == {A: (1, 1, 0)}
    made.looked(A, (2, 1, 0))
    assert list(made.late) == [A]
    made.looked(A, (1, 1, 0))
    assert made.late == {}


def test_what_is_forgotten_leaves_nothing() -> None:
    made = session()
    made.answered(A, (1, 1, 0), pause=True)
    made.looked(A, (2, 2, 0))
    made.forget(A)
    for held in (made.partitions, made.fresh, made.late, made.last_answered, made.paused):
        assert A not in held
    made.forget(A)
    assert list(made.partitions) == [B, C]


@pytest.mark.parametrize(("before", "after"), [(1, 2), (LAST_EPOCH - 1, LAST_EPOCH), (LAST_EPOCH, 1)])
def test_epochs_begin_again_at_1(before: int, after: int) -> None:
    made = session()
    assert made.next_epoch == 1
    made.next_epoch = before
    made.advance()
    assert made.next_epoch == after


@pytest.mark.parametrize(("who", "follows"), [(CONSUMER, False), (-2, False), (0, True), (1, True)])
def test_who_is_a_follower(who: int, follows: bool) -> None:
    assert session(who).is_follower is follows


def request(session_id: int, epoch: int, who: int = 4) -> FetchRequest:
    return FetchRequest(
        replica_id=who,
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=1,
        session_id=session_id,
        session_epoch=epoch,
        partitions=(),
    )


def test_a_session_is_found_by_its_id_its_owner_and_its_epoch() -> None:
    cache = SessionCache(3, random.Random(1))
    made, evicted = cache.begin(request(0, 0), 70)
    assert made is not None and evicted is None and len(cache) == 1
    assert (made.created_ms, made.used_ms, made.replica_id) == (70, 70, 4)
    assert 1 <= made.session_id < LAST_EPOCH
    assert cache.find(request(made.session_id, 1)) is made
    for wrong, code in (
        (request(made.session_id + 1, 1), ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
        (request(made.session_id, 1, who=5), ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
        (request(made.session_id, 1, who=3), ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
        (request(made.session_id, 2), ErrorCode.INVALID_FETCH_SESSION_EPOCH),
        (request(made.session_id, 0), ErrorCode.INVALID_FETCH_SESSION_EPOCH),
    ):
        found = cache.find(wrong)
        assert isinstance(found, ApiError) and found.code is code
    for who in (3, 5):
        assert cache.remove(made.session_id, who) is None and len(cache) == 1
    assert cache.remove(made.session_id, 4) is made and len(cache) == 0
    assert cache.remove(made.session_id, 4) is None


def test_without_slots_there_are_no_sessions() -> None:
    assert SessionCache(0, random.Random(1)).begin(request(0, 0), 70) == (None, None)


# ---- quotas ---------------------------------------------------------------------------------

CONFIG = ReplicaConfig(broker_id=1, replication_quota_window_num=3, replication_quota_window_ms=1_000)


def image(**settings: str) -> MetadataImage:
    """By resource: `t_...` of topic t, `b1_...` and `b2_...` of these brokers, `all_...` of all brokers."""
    resources = {"t": (2, "t"), "b1": (4, "1"), "b2": (4, "2"), "all": (4, "")}
    records: list[Any] = [r.FeatureLevelRecord("metadata.version", 19)]
    for name, value in settings.items():
        where, _, key = name.partition("_")
        config = f"leader.replication.throttled.{key}"
        records.append(r.ConfigRecord(*resources[where], config, value))
    state = replay_records(ReplayState(), base_offset=0, epoch=1, timestamp_ms=0, records=records)
    return state.image


def partition(index: int, topic: str = "t", isr: tuple[int, ...] = (1,)) -> Any:
    return SimpleNamespace(topic=topic, key=(bytes(16), index), isr=isr)


def throttle(**settings: str) -> Throttle:
    made = Throttle("leader", CONFIG)
    made.publish(image(**settings), MetadataImage())
    return made


@pytest.mark.parametrize(
    ("text", "covered"),
    [
        ("*", {0, 1, 2}),
        ("0:1", {0}),
        ("0:1,2:1", {0, 2}),
        (" 0:1 , 1:2 ", {0}),
        ("0:2", set()),
        ("0:11", set()),
        ("0", set()),
        ("0:1:1", set()),
        ("x:1", set()),
        ("9" * 5000 + ":1,1:1", {1}),
        (f"{2**31}:1", set()),
        ("*,0:1", {0}),
        ("", set()),
    ],
)
def test_which_partitions_a_quota_is_for(text: str, covered: set[int]) -> None:
    made = throttle(t_replicas=text)
    assert {at for at in range(3) if made.covers(partition(at))} == covered
    assert not made.covers(partition(0, "other"))
    made.publish(image(), image(t_replicas=text))
    assert not any(made.covers(partition(at)) for at in range(3))


@pytest.mark.parametrize(
    ("rates", "bound"),
    [
        ({}, None),
        ({"b1_rate": "7"}, 7),
        ({"b2_rate": "7"}, None),
        ({"all_rate": "8"}, 8),
        ({"b1_rate": "7", "all_rate": "8"}, 7),
        ({"b1_rate": "x", "all_rate": "8"}, 8),
        ({"b1_rate": "9" * 5000, "all_rate": "8"}, 8),
        ({"b1_rate": "0", "all_rate": "8"}, 0),
    ],
)
def test_which_rate_holds(rates: dict[str, str], bound: int | None) -> None:
    made = throttle(t_replicas="*", **rates)
    assert made._bound == (2**63 - 1 if bound is None else bound)
    made.publish(image(), image(t_replicas="*", **rates))
    assert made._bound == 2**63 - 1


def test_who_catches_up_waits_and_who_is_in_sync_is_only_counted() -> None:
    made = throttle(t_replicas="0:1", b1_rate="10")
    assert made.wait_ms(0) == 0
    made.count(partition(1), 1_000, 0)
    made.count(partition(0), 0, 0)
    assert made.wait_ms(0) == 0
    made.count(partition(0), 21, 0)
    # 21 bytes in two windows are 10.5 a second: half a byte a second too many, for 2 s, are 100 ms.
    assert made.wait_ms(0) == 100
    assert made.holds(partition(0), 2, 0)
    assert not made.holds(partition(0, isr=(1, 2)), 2, 0)
    assert not made.holds(partition(1), 2, 0)
    assert not throttle(b1_rate="1").wait_ms(0)
    unbounded = throttle(t_replicas="*")
    unbounded.count(partition(0), 10**12, 0)
    assert unbounded.wait_ms(0) == 0


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 25)), min_size=1, max_size=12))
def test_a_rate_is_that_of_its_windows(used: list[tuple[int, int]]) -> None:
    """Windows begin with what is used in them; those that are over for as long as all together are gone."""
    windows = QuotaWindows(count=3, window_ms=10)
    made, kept, now = Rate(windows), [], 0
    for amount, later in used:
        now += later
        made.add(amount, now)
        if kept and now - kept[-1][0] < 10:
            kept[-1][1] += amount
        else:
            kept.append([now, amount])
        kept = [each for each in kept if now - each[0] < 30]
        elapsed = now - kept[0][0]
        span = elapsed + max(0, 2 - elapsed // 10) * 10
        rate = 1_000 * sum(each for _, each in kept) / span
        for bound in (1, 1_000, rate, rate + 1):
            if bound > 0:
                expected = 0 if rate <= bound else (rate - bound) / bound * span
                assert made.over(bound, now) == pytest.approx(expected)
                assert made.wait_ms(bound, now) == pytest.approx(expected)
    made.remove(3)
    assert sum(amount for _, amount in made._samples) == sum(each for _, each in kept) - 3


@pytest.mark.parametrize("end", ["settled", "acknowledged"])
def test_a_broker_stops_for_a_lost_replica_so_long_after_its_loss_unless_that_is_over(
    end: str,
) -> None:
    call = SimpleNamespace(succeeded=lambda: None, next_deadline_ms=lambda *, waits: None)
    assignments = Assignments(call, 1_000)  # type: ignore[arg-type]
    key = b"t" * 16, 0
    assignments.lose(key, 5)
    assignments.lose(key, 900)
    assert assignments.owes_lost(key) and assignments.next_deadline_ms() == 1_005
    assert assignments.reason_to_stop(1_004) is None and assignments.reason_to_stop(1_005) is not None
    if end == "settled":
        assignments.settle(key)
    else:
        assignments.next_request(1, 2)
        result = AssignmentResult(
            directory_id=LOST, topic_id=key[0], partition=key[1], error=ErrorCode.NONE, message=None
        )
        assert assignments.answered(AssignReplicasToDirsResponse(results=(result,)), 950) == [key]
    assert not assignments.owes_lost(key) and len(assignments) == 0
    assert assignments.next_deadline_ms() is None and assignments.reason_to_stop(10**9) is None


# Who keeps a fetch session where slots are few (KIP-227), and limits of requests that wait.


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
