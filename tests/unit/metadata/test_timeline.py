"""The timeline: each step of the recorded scenario at its offset; severities, spans and gaps."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from metaquorum.metadata.inspect.causes.rule import SEVERITIES
from metaquorum.metadata.inspect.log.log import ReadBatch, open_log
from metaquorum.metadata.inspect.timeline.event import TimelineEvent, at_least
from metaquorum.metadata.inspect.timeline.event_groups import QuorumEvents
from metaquorum.metadata.inspect.timeline.time_events import TimeEvents
from metaquorum.metadata.inspect.timeline.timeline import Timeline
from metaquorum.metadata.records import control
from metaquorum.metadata.records import types as r
from metaquorum.storage.disk.posix import PosixDisk
from metaquorum.storage.log.runs import BatchRun
from tests.conftest import shared_data_path
from tests.unit.metadata.made_logs import encoded

ROOT = shared_data_path() or Path("absent")
ID = bytes(range(16))
OTHER = bytes(range(1, 17))


def test_the_silence_before_the_last_batch_of_a_stretch() -> None:
    """A part of a run of one batch ends the silence behind the one before it."""
    times = TimeEvents(5_000, 1_000)
    silences = []
    for part in ([1_600], [1_700, 1_900], [2_000]):
        assert times.batches(idle_run(part), np.array(part), 0) == []
        silences.append(times.silence_ms)
    assert silences == [600, 200, 100]
    times.lose()
    times.batches(idle_run([2_300]), np.array([2_300]), 0)
    assert times.silence_ms is None
    assert TimeEvents(5_000, None).silence_ms is None
    times.batches(idle_run([2_400, 2_500]), np.array([2_400, 2_450]), 0)
    assert times.silence_ms == -1, "its clock was corrected"
    times.batches(idle_run([2_600]), np.array([2_600]), 0)
    assert times.silence_ms == -1
    times.batches(idle_run([2_700]), np.array([2_700]), 0)
    assert times.silence_ms == 100


def idle_run(stamps: list[int]) -> BatchRun:
    batches = encoded([(1, [r.NoOpRecord()])] * len(stamps), stamps=stamps)
    places = np.cumsum([0, *map(len, batches)])
    return BatchRun(b"".join(batches), places, np.arange(len(stamps) + 1), 1, 0, "file")


def told(path: Path) -> list[TimelineEvent]:
    timeline, events = Timeline(), []
    for item in open_log(PosixDisk(), str(path)).items():
        if isinstance(item, ReadBatch):
            header = item.batch.header
            records = [(decoded.offset, decoded.record) for decoded in item.records]
            events += timeline.batch(header.leader_epoch, header.max_timestamp_ms, records)
    return events + timeline.finish()


@pytest.fixture(scope="module")
def scenario() -> list[TimelineEvent]:
    if shared_data_path() is None:
        pytest.skip("recorded logs are absent: see tests/conftest.py")
    return told(ROOT / "kafka-3.7" / "controller-3000")


# (step of the recorded scenario's README, offset, kind, severity, rule, part of the text)
STEPS = [
    ("01 start", 0, "election", "info", "leader-elected", "controller 3000 leads (voters 3000,3001,3002)"),
    ("01 start", 2, "feature", "info", None, "metadata.version is at level 19"),
    ("01 start", 11, "broker registered", "info", "registered", "broker 3, broker epoch 11"),
    ("01 start", 33, "broker unfenced", "info", "caught-up", "broker 1"),
    ("02 topics", 113, "config changed", "info", None, "cleanup.policy=compact, min.insync.replicas=2"),
    ("02 topics", 480, "topic created", "info", None, "big, 2 partitions"),
    ("05 users", 597, "user changed", "info", None, "bob: SCRAM-SHA-512 set"),
    ("06 acls", 634, "acl removed", "info", None, "FUSlL5jYRDKbVFlMNOao0Q"),
    ("08 delete", 781, "topic deleted", "info", None, "t05"),
    ("09 increase", 786, "partitions added", "info", None, "t01, 5 more"),
    (
        "10 kill -9 of 1",
        833,
        "leader changed",
        "info",
        "broker-fenced",
        "t11-0, t02-1, t07-0 and 11 more: 1 -> 2",
    ),
    ("10 kill -9 of 1", 838, "leaderless", "critical", "broker-fenced", "and 8 more: 1 -> none"),
    (
        "10 kill -9 of 1",
        882,
        "under min isr",
        "warning",
        None,
        "t04-0, t04-3, t04-4 and 1 more: ISR 1 of min 2",
    ),
    ("10 kill -9 of 1", 889, "broker fenced", "warning", "session-expired", "broker 1 (was unfenced)"),
    ("11 restart of 1", 928, "broker unfenced", "info", "caught-up", "broker 1 (was fenced)"),
    (
        "11 restart of 1",
        929,
        "leader changed",
        "info",
        "broker-returned",
        "none -> 1, 10.4 s without a leader",
    ),
    ("12 preferred", 998, "leader changed", "info", "preferred-election", "and 11 more: 2 -> 1"),
    (
        "13 shutdown of 2",
        1019,
        "broker in controlled shutdown",
        "info",
        "controlled-shutdown",
        "broker 2 (was unfenced)",
    ),
    ("13 shutdown of 2", 1025, "leaderless", "critical", "controlled-shutdown", "2 -> none"),
    ("13 shutdown of 2", 1078, "broker fenced", "info", "shutdown-finished", "broker 2 (was in controlled"),
    (
        "14 reassignment",
        1152,
        "reassignment started",
        "info",
        "reassignment-started",
        "t04-0, t04-1, t04-2 and 2",
    ),
    (
        "14 reassignment",
        1165,
        "reassignment completed",
        "info",
        "reassignment-completed",
        "t04-0: replicas [3,0,1,2]",
    ),
    ("15 cancelled", 1200, "reassignment started", "info", "reassignment-started", "big-0, big-1"),
    ("15 cancelled", 1217, "reassignment cancelled", "warning", "reassignment-cancelled", "big-0, big-1"),
    ("16 directories", 1249, "directory moved", "info", "directory-moved", "broker 0 moved big-0, t01-2"),
    ("17 directory", 1289, "leader changed", "info", "directory-failed", "0 -> 1"),
    (
        "17 directory",
        1290,
        "leaderless",
        "critical",
        "directory-failed",
        "t06-9, t12-3, t03-3 and 1 more: 0 -> none",
    ),
    (
        "17 directory",
        1319,
        "directory failed",
        "warning",
        "directory-failed",
        "30 partitions affected, 4 without a",
    ),
    ("17 directory", 1602, "broker unfenced", "info", "caught-up", "broker 0"),
    ("18 unclean", 1766, "broker fenced", "warning", "session-expired", "broker 2"),
    ("18 unclean", 1842, "broker fenced", "warning", "session-expired", "broker 1"),
    (
        "18 unclean",
        1921,
        "unclean election",
        "critical",
        "unclean-election",
        "broker 2 was not in the ISR [1]",
    ),
    ("18 unclean", 2010, "recovery finished", "info", "recovery-finished", "unclean-0"),
    (
        "19 kill -9 of the controller",
        2016,
        "election",
        "warning",
        "epochs-skipped",
        "stopped writing and did not vote",
    ),
    (
        "20 SIGTERM of the controller",
        2070,
        "election",
        "warning",
        "leader-replaced",
        "850 ms before; the log does not show which: it resigned, or it failed, hung",
    ),
    ("21 unregister 3", 2111, "reassignment started", "info", "reassignment-started", "and 59 more"),
    ("21 unregister 3", 2317, "broker fenced", "warning", "stopped-or-silent", "broker 3"),
    ("21 unregister 3", 2323, "broker unregistered", "info", "broker-unregistered", "broker 3"),
    ("22 fill", 2329, "topic created", "info", None, "fill-0-0, 20 partitions"),
    ("24 stop", 3958, "broker in controlled shutdown", "info", "controlled-shutdown", "broker 1"),
    ("24 stop", 4753, "broker fenced", "info", "shutdown-finished", "broker 0"),
    (
        "24 stop",
        4758,
        "still leaderless",
        "critical",
        None,
        "and 297 more, the longest for 5.9 s, since 3990",
    ),
]


@pytest.mark.parametrize(("step", "offset", "kind", "severity", "rule", "text"), STEPS)
def test_each_step_of_the_recorded_scenario_is_told_at_its_offset(
    scenario: list[TimelineEvent],
    step: str,
    offset: int,
    kind: str,
    severity: str,
    rule: str | None,
    text: str,
) -> None:
    found = [event for event in scenario if (event.offset, event.kind) == (offset, kind)]
    assert len(found) == 1, step
    rules = {"leader-lost", "epochs-skipped"} if rule == "epochs-skipped" else {rule}
    assert (found[0].severity, found[0].rule in rules) == (severity, True), (step, found[0])
    assert text in found[0].text, step


def test_nothing_critical_happened_that_is_not_in_the_scenario(scenario: list[TimelineEvent]) -> None:
    assert [(event.offset, event.kind) for event in scenario if event.severity == "critical"] == [
        *((offset, "leaderless") for offset in (838, 1025, 1290, 1363, 1717, 1790)),
        (1921, "unclean election"),
        *((offset, "leaderless") for offset in (3990, 4253, 4503)),
        (4753, "total outage"),
        (4758, "still leaderless"),
        (4758, "still no broker"),
    ]
    assert not [event for event in scenario if event.kind in ("gap in time", "record does not apply")]


def test_events_come_by_offset_and_name_everything_they_are_about(scenario: list[TimelineEvent]) -> None:
    assert [event.offset for event in scenario] == sorted(event.offset for event in scenario)
    lost = next(event for event in scenario if event.offset == 838)
    assert lost.is_about("topic/t18/1") and lost.is_about("topic/t18") and lost.is_about("broker/1")
    assert not lost.is_about("topic/t1") and not lost.is_about("broker/2")
    about = [
        event.kind for event in scenario if event.is_about("topic/unclean/0") and event.severity != "detail"
    ]
    assert about == [
        *("leader changed", "leader changed", "leaderless", "unclean election", "recovery finished"),
        *("leaderless", "still leaderless"),
    ]


def test_severities_are_ordered() -> None:
    assert at_least("detail") == frozenset(SEVERITIES)
    assert at_least("warning") == {"warning", "critical"}


class Story:
    """A made-up log: one record list a batch."""

    def __init__(self, **more: int) -> None:
        self.timeline = Timeline(**more)
        self.offset = 0
        self.events: list[TimelineEvent] = []

    def batch(self, time_ms: int, *records: object, epoch: int = 1) -> list[TimelineEvent]:
        told = self.timeline.batch(epoch, time_ms, list(enumerate(records, self.offset)))
        self.offset += len(records)
        self.events += told
        return told


def kinds(events: Iterable[TimelineEvent]) -> list[str]:
    return [event.kind for event in events if event.severity != "detail"]


def broker(number: int, epoch: int, *, fenced: bool = False, incarnation: bytes = ID) -> r.BrokerRecord:
    return r.BrokerRecord(number, incarnation, epoch, fenced=fenced)


def started(**more: int) -> Story:
    story = Story(**more)
    level = r.FeatureLevelRecord("metadata.version", 19)
    story.batch(0, level, broker(1, 1), broker(2, 2), r.TopicRecord("orders", ID))
    story.batch(1, r.PartitionRecord(0, ID, (1, 2), (1, 2), leader=1, leader_epoch=0, partition_epoch=0))
    return story


def test_silence_is_a_gap_only_where_an_idle_controller_would_write() -> None:
    story = started(gap_ms=1000)
    assert story.batch(60_000, r.NoOpRecord()) == []
    assert story.batch(61_000, r.NoOpRecord()) == []
    gap = story.batch(64_600, r.NoOpRecord())
    assert [(event.kind, event.offset, event.severity) for event in gap] == [("gap in time", 7, "warning")]
    assert "3.6 s" in gap[0].text
    back = story.batch(64_000, r.NoOpRecord())
    assert [(event.kind, event.severity) for event in back] == [("time ran backwards", "detail")]


def test_under_min_isr_follows_the_setting_as_well_as_the_isr() -> None:
    story = started()
    assert kinds(story.batch(10, r.PartitionChangeRecord(0, ID, isr=(1,)))) == ["isr shrank"]
    setting = r.ConfigRecord(2, "orders", "min.insync.replicas", "2")
    assert sorted(kinds(story.batch(20, setting))) == ["config changed", "under min isr"]
    again = story.batch(1520, r.PartitionChangeRecord(0, ID, isr=(1, 2)))
    assert [(event.kind, event.text) for event in again if event.severity == "info"] == [
        ("min isr restored", "orders-0, after 1.5 s")
    ]
    higher = r.ConfigRecord(2, "orders", "min.insync.replicas", "9")
    assert kinds(story.batch(30, higher)) == ["config changed"], "never more than its replicas"


def test_a_span_without_a_leader_ends_with_the_topic() -> None:
    story = started()
    assert kinds(story.batch(5, r.PartitionChangeRecord(0, ID, leader=-1))) == ["leaderless"]
    assert [event.kind for event in story.timeline.finish()] == ["still leaderless"]
    assert kinds(story.batch(6, r.RemoveTopicRecord(ID))) == ["topic deleted"]
    assert story.timeline.finish() == []


def test_what_an_aborted_transaction_said_did_not_happen() -> None:
    lost = r.PartitionChangeRecord(0, ID, leader=-1)
    aborted, cut_off = started(), started()
    for story in (aborted, cut_off):
        assert story.batch(5, r.BeginTransactionRecord("t"), lost) == []
    told = aborted.batch(6, r.AbortTransactionRecord("gave up"))
    assert kinds(told) == ["transaction aborted"]
    assert aborted.timeline.finish() == []
    assert kinds(cut_off.timeline.finish()) == ["transaction still open"]


def test_records_that_do_not_fit_and_unknown_ones_are_told() -> None:
    story = started()
    told = story.batch(5, r.RemoveTopicRecord(OTHER), r.UnknownRecord(99, 7, b""), r.RemoveTopicRecord(OTHER))
    assert [(event.kind, event.offset) for event in told] == [
        ("record does not apply", 5),
        ("unknown record", 6),
    ]
    assert told[0].text.endswith("and 1 more")
    assert told[1].text == "record type 99 version 7"


def test_an_election_before_metadata_version_3_2_shows_as_unclean_by_its_isr() -> None:
    story = started()
    story.batch(5, r.PartitionChangeRecord(0, ID, isr=(1,)))
    told = story.batch(6, r.PartitionChangeRecord(0, ID, isr=(2,), leader=2))
    assert "unclean election" in kinds(told)


def test_a_voter_change_and_a_restart_are_told() -> None:
    story = started()
    voters = tuple(control.Voter(node, ID) for node in (1, 2, 3))
    told = story.batch(5, control.KRaftVersionRecord(1), control.VotersRecord(voters))
    assert [(event.kind, event.text) for event in told] == [
        ("feature", "kraft.version is at level 1"),
        ("voters changed", "voters are 1,2,3"),
    ]
    again = story.batch(6, broker(1, 7, fenced=True, incarnation=OTHER))
    assert [(event.kind, event.severity) for event in again] == [("broker registered", "warning")]


def critical(events: Iterable[TimelineEvent]) -> list[tuple[str, str]]:
    return [(event.kind, event.text) for event in events if event.severity == "critical"]


def test_a_stretch_without_an_unfenced_broker_is_an_outage_and_says_how_it_began() -> None:
    story = started()
    assert critical(story.batch(10_000, r.FenceBrokerRecord(1, 1))) == []
    fence = story.batch(12_000, r.FenceBrokerRecord(2, 2))
    assert [text.partition(":")[0] for kind, text in critical(fence) if kind == "total outage"] == [
        "no broker is unfenced"
    ]
    assert ("still no broker", "no broker is unfenced for 0 ms, since 6") in critical(story.timeline.finish())
    back = story.batch(36_100, r.UnfenceBrokerRecord(1, 1))
    ended = next(event for event in back if event.kind == "total outage ended")
    assert (ended.span_ms, ended.text) == (
        24_100,
        "broker 1 is unfenced, after 24.1 s without an unfenced broker",
    )
    assert critical(story.timeline.finish()) == []


def test_before_the_first_broker_was_unfenced_there_is_no_outage() -> None:
    story = Story()
    assert critical(story.batch(0, broker(1, 0, fenced=True))) == []
    assert critical(story.timeline.finish()) == []


@pytest.mark.parametrize(("waited_ms", "told"), [(30_000, False), (30_001, True), (300_000, True)])
def test_a_broker_that_stays_fenced_long_after_it_registered_is_told(waited_ms: int, told: bool) -> None:
    story = started()
    story.batch(1_000, r.FenceBrokerRecord(1, 1))
    story.batch(700_000, broker(1, 6, fenced=True, incarnation=OTHER))
    story.batch(700_001, r.FenceBrokerRecord(2, 2))
    again = story.batch(700_000 + waited_ms, r.NoOpRecord())
    assert again == []
    found = {event.entity: event for event in story.timeline.finish() if event.kind == "still fenced"}
    assert (found["broker/1"].severity == "warning") is told
    assert "it registered" in found["broker/1"].text
    back = story.batch(700_000 + waited_ms, r.UnfenceBrokerRecord(1, 6))
    slow = [event for event in back if event.kind == "slow to return"]
    assert bool(slow) is told
    if told:
        assert (slow[0].severity, slow[0].span_ms, slow[0].entity) == ("warning", waited_ms, "broker/1")


def test_a_recorded_broker_that_waited_for_its_directory_is_slow_to_return(
    scenario: list[TimelineEvent],
) -> None:
    (slow,) = [event for event in scenario if event.kind == "slow to return"]
    assert (slow.offset, slow.entity) == (1602, "broker/0")
    assert "after it registered at 1431 and 2 more times" in slow.text


@pytest.mark.parametrize(("lasted_ms", "severity"), [(30_000, "info"), (30_001, "warning")])
def test_a_broker_that_may_have_died_and_stays_away_is_a_warning(lasted_ms: int, severity: str) -> None:
    story = Story()
    story.batch(0, r.FeatureLevelRecord("metadata.version", 19), broker(1, 1), broker(2, 2))
    fence = story.batch(60_000, r.FenceBrokerRecord(1, 1))
    assert [event.rule for event in fence if event.kind == "broker fenced"] == ["stopped-or-silent"]
    story.batch(60_000 + lasted_ms, r.NoOpRecord())
    (still,) = [event for event in story.timeline.finish() if event.kind == "still fenced"]
    assert still.severity == severity


def test_what_a_controller_wrote_before_its_election_is_no_silence_before_it() -> None:
    """As up to Kafka 3.5: the first records of a cluster, then the election that began their epoch."""
    elections = QuorumEvents(None)
    elections.follows(1)
    leader = control.LeaderChangeMessage(1)
    assert elections.election(2, leader, 1, 34, 7).span_ms is None
    assert elections.election(9, leader, 2, 34, 7).span_ms == 34
