"""What follows from the timeouts that are configured: every derived duration, and pauses that double."""

from __future__ import annotations

import pytest

from metaquorum.raft.config import DOUBLINGS_MAX, RaftConfig, RaftConfigError, Voter, doubled_ms
from metaquorum.raft.voters import Endpoint, has_majority, majority

NAMES = (
    *("check_quorum_ms", "observer_patience_ms", "begin_quorum_ms", "quiet_voter_ms", "keepalive_ms"),
    *("fetch_grace_ms", "update_voter_ms", "empty_fetch_pause_ms"),
)


@pytest.mark.parametrize(
    ("config", "derived"),
    [
        (RaftConfig(), (1500, 3500, 250, 500, 250, 333, 500, 100)),
        (
            RaftConfig(fetch_timeout_ms=907, observer_fetch_max_wait_ms=31, retry_backoff_ms=7),
            (1360, 1391, 226, 453, 226, 302, 453, 35),
        ),
        (
            RaftConfig(
                fetch_timeout_ms=1, fetch_max_wait_ms=0, observer_fetch_max_wait_ms=0, retry_backoff_ms=0
            ),
            (1, 1, 1, 0, 1, 1, 0, 0),
        ),
    ],
)
def test_derived_durations(config: RaftConfig, derived: tuple[int, ...]) -> None:
    assert tuple(getattr(config, name) for name in NAMES) == derived


def test_bounds_and_periods_that_are_not_timeouts() -> None:
    """Those are in docs/raft.md, which another test reads."""
    config = RaftConfig()
    assert (config.fetch_max_bytes, config.snapshot_chunk_bytes) == (1 << 20, 1 << 20)
    assert (config.parked_fetches_max, config.pending_reads_max) == (1 << 12, 1 << 14)
    assert (config.observer_session_ms, config.new_voter_lag_max) == (5 * 60_000, 1000)
    assert (config.note_committed_ms, config.sync_committed_ms) == (50, 5000)
    assert (config.high_watermark_linger_ms, config.bootstrap_ids) == (0, ())


@pytest.mark.parametrize(
    ("doublings", "pause"),
    [(0, 3), (1, 6), (2, 12), (DOUBLINGS_MAX, 3 << 16), (DOUBLINGS_MAX + 1, 3 << 16), (10_000, 3 << 16)],
)
def test_a_pause_is_doubled_so_often_and_no_more(doublings: int, pause: int) -> None:
    assert doubled_ms(3, doublings, 10**9) == pause
    assert doubled_ms(3, doublings, 5) == min(5, pause)


def test_a_configured_voter_listens_without_a_name() -> None:
    assert Voter(node_id=1, host="h", port=7).endpoints == (Endpoint("", "h", 7),)


FIELDS = [name for name in RaftConfig.__struct_fields__ if name != "bootstrap_ids"]


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("value", [-5, -1, 2**31])
def test_a_number_outside_of_its_range_is_refused_by_name(field: str, value: int) -> None:
    with pytest.raises(RaftConfigError, match=rf"{field} \({value}\) must be from [01] to 2147483647"):
        RaftConfig(**{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("field", ["election_timeout_ms", "fetch_timeout_ms", "request_timeout_ms"])
def test_a_timeout_of_zero_would_spin(field: str) -> None:
    with pytest.raises(RaftConfigError, match=field):
        RaftConfig(**{field: 0, "fetch_max_wait_ms": 0})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        (
            {"fetch_max_wait_ms": 501},
            "fetch_max_wait_ms (501) must be at most half of fetch_timeout_ms (1000), or a waiting fetch "
            "looks like a dead leader",
        ),
        (
            {"retry_backoff_ms": 501},
            "retry_backoff_ms (501) must be at most retry_backoff_max_ms (500)",
        ),
        (
            {"note_committed_ms": 5001},
            "note_committed_ms (5001) must be at most sync_committed_ms (5000): a durable note is a note",
        ),
        ({"bootstrap_ids": (-1, 0)}, "bootstrap_ids must be below 0: node ids are not"),
    ],
)
def test_values_that_do_not_fit_together_are_named_both(fields: dict[str, object], text: str) -> None:
    with pytest.raises(RaftConfigError) as caught:
        RaftConfig(**fields)  # type: ignore[arg-type]
    assert str(caught.value) == text


# Majority maths, by cases that were worked out by hand.


@pytest.mark.parametrize(("voters", "needed"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (7, 4)])
def test_majority(voters: int, needed: int) -> None:
    assert majority(voters) == needed


def test_only_voters_count() -> None:
    assert has_majority({1, 2}, {1, 2, 3})
    assert not has_majority({1, 8, 9}, {1, 2, 3})
    assert not has_majority([1, 1, 1], {1, 2, 3})
