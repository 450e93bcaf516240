"""Small parts of a broker at their edges: promised room, when a follower kept up."""

from __future__ import annotations

import pytest

from metaquorum.broker.replica.partition.isr import NEVER_MS, FollowerProgress
from metaquorum.broker.replica.placement.directories import Directory
from metaquorum.broker.replica.requests.handler import KnownBrokers
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.image import BrokerRegistration, ImageBuilder, MetadataImage, NodeEndpoint
from metaquorum.metadata.node_configs import ReplicaConfig
from metaquorum.metadata.requests.common import BrokerHeartbeatRequest
from tests.unit.broker.test_session import DIRECTORY, beat, error, running


@pytest.mark.parametrize(
    ("usable", "promised", "size", "fits"),
    [
        (1000, 0, 900, True),
        (1000, 0, 901, False),
        (1000, 400, 500, True),
        (1000, 400, 501, False),
        (1000, 5000, 0, True),
        (-1, 5000, 5000, True),
        (0, 0, 1, False),
        (0, 0, 0, True),
    ],
)
def test_nine_tenths_of_what_is_free_can_be_promised(
    usable: int, promised: int, size: int, fits: bool
) -> None:
    made = Directory(
        path="/d",
        directory_id=b"d" * 16,
        problem=None,
        total_bytes=2000,
        usable_bytes=usable,
        promised_bytes=promised,
    )
    assert made.has_room(size) == fits


def test_a_follower_that_has_not_fetched_held_nothing() -> None:
    fresh = FollowerProgress()
    fresh.held_all(500)
    assert fresh.caught_up_ms == NEVER_MS
    fresh.fetched(10, leader_end=10, epoch=3, now_ms=1000)
    assert (fresh.caught_up_ms, fresh.acknowledged, fresh.epoch) == (1000, 10, 3)
    fresh.held_all(1500)
    assert fresh.caught_up_ms == 1500
    fresh.held_all(1200)  # what is told late is no step back
    assert fresh.caught_up_ms == 1500
    fresh.left_isr(2000)
    for at_ms, caught_up_ms in ((1900, NEVER_MS), (2000, NEVER_MS), (2001, 2001)):
        fresh.held_all(at_ms)
        assert fresh.caught_up_ms == caught_up_ms


def test_a_follower_a_little_behind_is_caught_up_as_of_its_fetch_before() -> None:
    one = FollowerProgress()
    one.fetched(5, leader_end=10, epoch=3, now_ms=1000)
    assert one.caught_up_ms == NEVER_MS
    one.fetched(9, leader_end=20, epoch=3, now_ms=2000)
    assert one.caught_up_ms == NEVER_MS  # it had not reached the 10 of a second before
    one.fetched(20, leader_end=30, epoch=3, now_ms=3000)
    assert one.caught_up_ms == 2000
    one.fetched(30, leader_end=30, epoch=3, now_ms=4000)
    assert one.caught_up_ms == 4000


def test_defaults_are_kafkas() -> None:
    config = ReplicaConfig(broker_id=1)
    assert config.replica_lag_time_max_ms == 30_000
    assert (config.replica_fetch_max_bytes, config.replica_fetch_response_max_bytes) == (
        1_048_576,
        10_485_760,
    )
    assert (config.replica_fetch_min_bytes, config.replica_fetch_wait_max_ms) == (1, 500)
    assert (config.replica_fetch_backoff_ms, config.fetch_max_bytes) == (1000, 57_671_680)
    assert config.max_incremental_fetch_session_cache_slots == 1000
    assert config.producer_id_expiration_ms == 86_400_000
    assert config.replica_high_watermark_checkpoint_interval_ms == 5000
    assert config.log_retention_check_interval_ms == 300_000


# ---- other brokers, by the newest image ------------------------------------------------------------


def test_a_leader_is_reached_at_the_listener_for_brokers() -> None:
    builder = ImageBuilder(MetadataImage())
    listeners = (NodeEndpoint("DATA", "inside", 9001, 0), NodeEndpoint("PUBLIC", "outside", 9002, 0))
    for broker_id, endpoints in ((1, listeners), (2, listeners[::-1]), (3, listeners[1:])):
        builder.put_broker(
            BrokerRegistration(
                broker_id=broker_id,
                epoch=7 + broker_id,
                incarnation_id=bytes(16),
                endpoints=endpoints,
                fenced=False,
            )
        )
    known = KnownBrokers("DATA")
    assert known.endpoint(1) is None and known.epoch(1) is None and not known.may_join_isr(1)
    known.moved(builder.freeze())
    found = [known.endpoint(broker_id) for broker_id in (1, 2, 3, 4)]
    assert found == [("inside", 9001), ("inside", 9001), None, None]
    assert [known.epoch(broker_id) for broker_id in (1, 2, 3, 4)] == [8, 9, 10, None]


# ---- a session's counts ----------------------------------------------------------------------------


@pytest.mark.parametrize("failures", [1, 2, 5])
def test_failures_in_a_row_end_with_the_first_answer(failures: int) -> None:
    at = running()
    for count in range(1, failures + 1):
        at.until_sent()
        at.fail()
        assert at.session.exchange.failures == count
    at.until_sent()
    at.answer(beat())
    assert at.session.exchange.failures == 0
    at.until_sent()
    at.fail()
    assert at.session.exchange.failures == 1, "an earlier row does not count"


def test_a_registration_that_stays_wrong_is_sent_again_ever_more_rarely() -> None:
    """After 1, 2, 4, 8 and 16 heartbeats, then after every 16; a right one ends that."""
    at = running()
    beats, sent_after = 0, []
    at.take(at.session.registration_read(at.now_ms, directories=frozenset(), leaving=False))
    for _ in range(80):
        request = at.until_sent().request
        if isinstance(request, BrokerHeartbeatRequest):
            beats += 1
            at.answer(beat())
        else:
            sent_after.append(beats)
            at.answer(error(ErrorCode.THROTTLING_QUOTA_EXCEEDED))
        at.take(at.session.registration_read(at.now_ms, directories=frozenset(), leaving=False))
    assert sent_after == [0, 1, 2, 4, 8, 16, 32, 48, 64]
    at.take(at.session.registration_read(at.now_ms, directories=frozenset((DIRECTORY,)), leaving=False))
    for _ in range(40):
        assert isinstance(at.until_sent().request, BrokerHeartbeatRequest)
        at.answer(beat())
