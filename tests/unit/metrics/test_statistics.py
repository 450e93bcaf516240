"""Histograms, windows and what is watched of Raft, on times that the test gives."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest

from metaquorum.observability.metrics import statistics as node_module
from metaquorum.observability.metrics.statistics import (
    ERRORS_MAX,
    WINDOW_MS,
    FlushStatistics,
    Histogram,
    NodeStatistics,
    RequestStatistics,
    Window,
)


@dataclass
class Raft:
    role: str = "follower"
    epoch: int = 1
    leader_id: int | None = 1
    high_watermark: int = 0

    @property
    def is_leader(self) -> bool:
        return self.role == "leader"


class Watch:
    """time.monotonic_ns by hand."""

    def __init__(self) -> None:
        self.ms = 0.0

    def monotonic_ns(self) -> int:
        return round(self.ms * 1e6)


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    watch = Watch()
    monkeypatch.setattr(node_module, "time", watch)
    return watch


def test_a_value_on_a_bound_is_in_the_bucket_below_it() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 2.5, 100.0):
        histogram.observe(value)
    assert histogram.counts == [2, 2, 2]
    assert (histogram.count, histogram.total) == (6, 107.5)


def test_a_window_forgets_after_two_spans() -> None:
    window = Window(0)
    assert math.isnan(window.average(0)) and math.isnan(window.maximum(0))
    window.note(10, 1_000)
    window.note(30, 2_000)
    assert (window.average(2_000), window.maximum(2_000)) == (20, 30)
    assert window.per_second(4_000) == 10
    window.note(5, WINDOW_MS + 1)
    assert (window.average(WINDOW_MS + 1), window.maximum(WINDOW_MS + 1)) == (15, 30)
    # The first span is too old now, the second one is the last.
    assert (window.average(2 * WINDOW_MS), window.maximum(2 * WINDOW_MS)) == (5, 5)
    assert math.isnan(window.average(4 * WINDOW_MS))
    assert window.per_second(4 * WINDOW_MS) == 0


def test_a_rate_right_after_the_start_is_of_one_second_at_least() -> None:
    window = Window(5_000)
    window.note(7, 5_001)
    assert window.per_second(5_001) == 7


def test_requests_by_name_error_and_abandonment() -> None:
    requests = RequestStatistics()
    requests.observe("Produce", 3.0)
    requests.observe("Produce", 700.0, "NOT_LEADER_OR_FOLLOWER")
    requests.abandon("FetchConsumer")
    assert requests.times_ms["Produce"].count == 2
    assert requests.errors == {("Produce", "NOT_LEADER_OR_FOLLOWER"): 1}
    assert requests.abandoned == {"FetchConsumer": 1}


def test_error_codes_that_are_counted_are_bounded() -> None:
    requests = RequestStatistics()
    for number in range(ERRORS_MAX + 50):
        requests.observe("Produce", 1.0, f"CODE_{number}")
    requests.observe("Produce", 1.0, "CODE_0")
    assert len(requests.errors) == ERRORS_MAX
    assert requests.errors["Produce", "CODE_0"] == 2


def test_flushes_by_directory() -> None:
    flushes = FlushStatistics()
    flushes.observe("/a", 2.0)
    flushes.observe("/b", 4.0)
    flushes.observe("/a", 6.0)
    assert {path: each.total for path, each in flushes.times_ms.items()} == {"/a": 8.0, "/b": 4.0}


def test_commits_are_timed_from_append_to_high_watermark(watch: Watch) -> None:
    stats, raft = NodeStatistics(0), Raft(role="leader")
    stats.watch(raft)
    stats.appended_batch(0, 3, 0)
    watch.ms = 4
    stats.appended_batch(3, 5, 4)
    raft.high_watermark = 4
    watch.ms = 10
    stats.stepped(watch.monotonic_ns(), 10)
    assert (stats.commit_ms.count, stats.commit_ms.total) == (1, 10)
    raft.high_watermark = 5
    watch.ms = 12
    stats.stepped(watch.monotonic_ns(), 12)
    assert (stats.commit_window.average(12), stats.commit_window.maximum(12)) == (9, 10)
    assert (stats.appended_records, stats.fetched_records) == (5, 0)


def test_what_a_lost_leadership_left_uncommitted_is_not_timed(watch: Watch) -> None:
    stats, raft = NodeStatistics(0), Raft(role="leader")
    stats.watch(raft)
    stats.appended_batch(0, 3, 0)
    raft.role = "follower"
    stats.stepped(watch.monotonic_ns(), 1)
    raft.high_watermark = 10
    stats.appended_batch(3, 10, 2)
    stats.stepped(watch.monotonic_ns(), 2)
    assert stats.commit_ms.count == 0
    assert (stats.appended_records, stats.fetched_records) == (3, 7)


def test_elections_are_timed_until_a_leader_is_known(watch: Watch) -> None:
    stats, raft = NodeStatistics(0), Raft()
    stats.watch(raft)
    stats.stepped(0, 0)
    assert stats.elections.leaders_seen == 1
    raft.role, raft.leader_id = "prospective", None
    stats.stepped(0, 0)
    raft.role, raft.epoch = "candidate", 2
    watch.ms = 50
    stats.stepped(watch.monotonic_ns(), 50)
    raft.role, raft.leader_id = "leader", 3
    watch.ms = 80
    stats.stepped(watch.monotonic_ns(), 80)
    stats.stepped(watch.monotonic_ns(), 80)
    assert (stats.elections.by_ms.count, stats.elections.by_ms.total) == (1, 80)
    assert stats.elections.leaders_seen == 2
    assert stats.election_window.maximum(80) == 80


def test_the_same_leader_in_a_new_epoch_counts_as_new(watch: Watch) -> None:
    stats, raft = NodeStatistics(0), Raft()
    stats.watch(raft)
    stats.stepped(0, 0)
    raft.leader_id = None
    stats.stepped(0, 0)
    raft.leader_id, raft.epoch = 1, 5
    stats.stepped(0, 0)
    assert stats.elections.leaders_seen == 2


def test_queue_and_processing_times_of_events(watch: Watch) -> None:
    stats = NodeStatistics(0)
    stats.queued()
    watch.ms = 5
    stats.queued()
    begun_ns = watch.monotonic_ns()
    watch.ms = 8
    stats.handled(begun_ns)
    begun_ns = watch.monotonic_ns()
    watch.ms = 9
    stats.handled(begun_ns)
    assert (stats.queue_ms.count, stats.queue_ms.total) == (2, 5 + 3)
    assert (stats.processing_ms.count, stats.processing_ms.total) == (2, 3 + 1)


def test_the_idle_ratio_is_what_the_steps_left(watch: Watch) -> None:
    stats = NodeStatistics(0)
    watch.ms = 500
    stats.stepped(0, 500)
    assert stats.idle_ratio(2_000) == 0.75


def test_snapshots_loaded_written_and_rejected() -> None:
    stats = NodeStatistics(100)
    stats.snapshot_loaded(1_000)
    assert (stats.snapshots.generated_bytes, stats.snapshots.loads) == (1_000, 1)
    stats.snapshot_written(2_000, 700)
    stats.snapshot_loaded(5_000)
    assert (stats.snapshots.generated_bytes, stats.snapshots.generated_ms) == (2_000, 700)
    stats.snapshot_rejected()
    assert (stats.snapshots.loads, stats.load_errors) == (2, 1)
