"""The sums of a summary, against the same sums taken from the states of the log one by one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from metaquorum.metadata.image import ConfigResource, MetadataImage
from metaquorum.metadata.image.types import NO_LEADER
from metaquorum.metadata.inspect.log.log import MetadataLog, ReadBatch, open_log
from metaquorum.metadata.inspect.log.points import Point
from metaquorum.metadata.inspect.summary import Section, Summary
from metaquorum.metadata.inspect.timeline import time_events
from metaquorum.metadata.inspect.timeline.event import TimelineEvent
from metaquorum.metadata.inspect.timeline.event_groups import duration
from metaquorum.metadata.inspect.timeline.story import events
from metaquorum.metadata.inspect.timeline.time_events import (
    cannot_decide,
    gap_ms,
    idle_interval_ms,
    last_time_ms,
)
from metaquorum.metadata.inspect.timeline.timeline import Timeline
from metaquorum.metadata.inspect.walk.rewrite import NO_OP
from metaquorum.metadata.inspect.walk.states import steps
from metaquorum.metadata.records import types as r
from metaquorum.storage.batches.batch import encode_batch, iter_batches
from metaquorum.storage.disk.posix import PosixDisk
from metaquorum.storage.log.reader import Damage
from tests.stories.story import METADATA
from tests.sums.survey import Survey, names, text_of
from tests.unit.metadata.made_logs import STORY, Batch, make_node, memory_disk
from tests.unit.metadata.test_timeline import ID, OTHER, Story, broker, started

LOGS = [
    "kafka-3.7/controller-3000",
    "kafka-3.7/upgrade/controller-3000",
    "kraft-wild/kafka-3.5/data/kafka",
    "kraft-wild/kafka-3.6-epoch-gap/kraft-combined-logs",
    "kraft-wild/kafka-4.2-remove-topic/kafka-data",
]


def events_of(path: Path, end: int | None = None) -> Iterator[TimelineEvent]:
    timeline = Timeline()
    for item in open_log(PosixDisk(), str(path)).items():
        if isinstance(item, ReadBatch):
            header = item.batch.header
            if end is not None and header.next_offset > end:
                break
            records = [(one.offset, one.record) for one in item.records]
            yield from timeline.batch(header.leader_epoch, header.max_timestamp_ms, records)
    yield from timeline.finish()


def summed(path: Path, start: Point | None = None, end: int | None = None) -> dict[str, Section]:
    summary = Summary(start)
    for event in events_of(path, end):
        summary.take(event)
    return {section.name: section for section in summary.finish()}


class States:
    """How long each partition had no leader and each broker was fenced, from the images after each batch."""

    def __init__(self, path: Path, start: int = 0, end: int | None = None) -> None:
        self.leaderless: dict[tuple[bytes, int], int] = {}
        self.fenced: dict[int, int] = {}
        last_ms: int | None = None
        leaderless: set[tuple[bytes, int]] = set()
        fenced: set[int] = set()
        seen: set[int] = set()
        for step in steps(open_log(PosixDisk(), str(path))):
            if end is not None and step.next_offset > end:
                break
            if last_ms is not None and step.offset > start:
                for key in leaderless:
                    self.leaderless[key] = self.leaderless.get(key, 0) + step.time_ms - last_ms
                for node in fenced & seen:
                    self.fenced[node] = self.fenced.get(node, 0) + step.time_ms - last_ms
            last_ms = step.time_ms
            image = step.after
            if all(isinstance(one.record, r.NoOpRecord) for one in step.records):
                continue
            leaderless = {
                (at.topic_id, at.index)
                for topic in image.topics.all()
                for at in image.topics.partitions_of(topic.topic_id)
                if at.leader == NO_LEADER
            }
            fenced = {node for node, known in image.brokers.items() if known.fenced}
            seen |= {node for node, known in image.brokers.items() if not known.fenced}


@pytest.mark.parametrize("name", LOGS)
def test_times_are_those_of_the_states_one_by_one(shared_data: Path, name: str) -> None:
    found = summed(shared_data / name)
    truth = States(shared_data / name)
    figures = found["leaderless"].figures if "leaderless" in found else {"partitionMs": 0, "partitions": 0}
    assert figures["partitionMs"] == sum(truth.leaderless.values())
    assert found["brokers"].figures["fencedMs"] == sum(truth.fenced.values())


@pytest.mark.parametrize(("start", "end"), [(1300, 1500), (1800, 4000), (839, 930), (2100, 2400)])
def test_only_what_lies_in_the_range_counts(shared_data: Path, start: int, end: int) -> None:
    path = shared_data / "kafka-3.7" / "controller-3000"
    first = next(event for event in events_of(path, end) if event.offset >= start)
    truth = States(path, first.offset, end)
    found = summed(path, Point(offset=start), end)
    told = found["leaderless"].figures["partitionMs"] if "leaderless" in found else 0
    assert told == sum(truth.leaderless.values())
    assert found["brokers"].figures["fencedMs"] == sum(truth.fenced.values())


def test_the_recorded_scenario_in_sections(shared_data: Path) -> None:
    found = summed(shared_data / "kafka-3.7" / "controller-3000")
    assert list(found) == [
        *("quorum", "total outages", "brokers", "leaderless", "unclean elections", "under min isr"),
        *("directories failed", "reassignments", "removed", "changes"),
    ]
    assert [(row.offset, row.text) for row in found["unclean elections"].rows] == [
        (1921, "topic/unclean/0: 2 leads after 14.4 s, not in the ISR")
    ]
    assert found["quorum"].figures == {"elections": 3, "silenceMs": 4068, "longestMs": 3218}
    assert found["reassignments"].figures == {"started": 69, "cancelled": 2, "completed": 67, "underWay": 0}
    assert found["brokers"].text == "9 fences of 4: 5 shut down cleanly, 3 no heartbeat, 1 unclear"
    worst = found["leaderless"].rows[0]
    assert (worst.offset, worst.entity, worst.span_ms) == (1290, "topic/t06/9", 99_517)


@pytest.mark.parametrize("name", LOGS)
def test_the_line_of_a_section_says_the_figures_that_json_has(shared_data: Path, name: str) -> None:
    told = summed(shared_data / name)
    timed = 0
    for section in told.values():
        figures = section.figures
        if "totalMs" not in figures or "count" not in figures:
            continue
        assert str(figures["count"]) in section.text
        assert (duration(figures["totalMs"]) in section.text) == bool(figures["totalMs"])
        timed += bool(figures["totalMs"])
    assert timed or not {"total outages", "gaps in time"} & told.keys()


def of(story: Story, start: Point | None = None) -> dict[str, Section]:
    summary = Summary(start)
    for event in [*story.events, *story.timeline.finish()]:
        summary.take(event)
    return {section.name: section for section in summary.finish()}


def test_a_topic_that_is_gone_is_no_longer_without_a_leader() -> None:
    story = started()
    story.batch(1_000, r.PartitionChangeRecord(0, ID, leader=-1))
    story.batch(4_000, r.RemoveTopicRecord(ID))
    story.batch(9_000, r.NoOpRecord())
    section = of(story)["leaderless"]
    assert section.figures == {"partitions": 1, "still": 0, "longestMs": 3_000, "partitionMs": 3_000}


def test_what_goes_on_at_the_end_is_said_to() -> None:
    story = started()
    story.batch(1_000, r.PartitionChangeRecord(0, ID, leader=-1))
    story.batch(3_500, r.NoOpRecord())
    section = of(story)["leaderless"]
    assert section.text == "1 partition, longest 2.5 s; 1 still at the end"
    assert section.rows[0].text == "topic/orders/0: 2.5 s, and still"


def test_outages_tell_how_they_began_and_how_long_they_were() -> None:
    story = started()
    story.batch(1_000, r.FenceBrokerRecord(2, 2))
    story.batch(2_000, broker(1, 7, fenced=True, incarnation=OTHER))
    story.batch(9_000, r.UnfenceBrokerRecord(1, 7))
    (row,) = of(story)["total outages"].rows
    assert (row.offset, row.span_ms, row.severity) == (6, 7_000, "critical")
    assert row.text == "for 7.0 s; broker 1 last, restarted"


def test_nothing_but_the_state_counts_from_before_the_range() -> None:
    story = started()
    story.batch(1_000, r.PartitionChangeRecord(0, ID, leader=-1))
    story.batch(2_000, r.FenceBrokerRecord(2, 2))
    story.batch(60_000, r.PartitionChangeRecord(0, ID, leader=1))
    story.batch(61_000, r.UnfenceBrokerRecord(2, 2))
    found = of(story, Point(time_ms=50_000))
    assert found["leaderless"].figures["partitionMs"] == 10_000
    assert found["leaderless"].rows[0].offset == 5, "where it began, though that is before the range"
    assert found["brokers"].figures == {"fences": 0, "fencedMs": 11_000}
    assert "leaderless" not in of(story, Point(time_ms=60_500))


def test_a_reassignment_under_way_is_told() -> None:
    story = started()
    story.batch(5, broker(3, 3))
    moving = r.PartitionChangeRecord(0, ID, replicas=(1, 2, 3), adding_replicas=(3,))
    story.batch(6, moving)
    assert of(story)["reassignments"].text == "1 started, 1 under way since 6"


@pytest.mark.parametrize(("interval", "gap"), [(500, 5_000), (100, 5_000), (1_000, 10_000), (5_000, 50_000)])
def test_what_is_a_gap_follows_from_how_often_an_idle_controller_writes(interval: int, gap: int) -> None:
    assert gap_ms(interval) == gap


def test_the_idle_interval_is_that_of_the_log() -> None:
    disk = memory_disk()
    idle: list[Batch] = [*STORY, *((2, [r.NoOpRecord()]) for _ in range(40))]
    log = make_node(disk, idle).log
    assert idle_interval_ms(log) == 1_000, "the batches of made logs are a second apart"
    assert idle_interval_ms(make_node(disk, STORY, home="/other").log) is None
    assert last_time_ms(log) == 1_795_000_000_000 + 1_000 * (len(idle) - 1)


def test_recorded_idle_intervals(shared_data: Path) -> None:
    for name in ("kafka-3.7/controller-3000", "kraft-wild/kafka-3.5/data/kafka"):
        interval = idle_interval_ms(open_log(PosixDisk(), str(shared_data / name)))
        assert interval is not None and 480 <= interval <= 560
    old = open_log(PosixDisk(), str(shared_data / "kraft-wild/pre-3.3-no-feature-level/kafka/data"))
    assert idle_interval_ms(old) is None


def test_a_silence_before_a_trimmed_logs_first_election_is_in_the_sum() -> None:
    summary = Summary(None)
    summary.take(
        TimelineEvent(
            offset=2016,
            epoch=5,
            time_ms=9_000,
            kind="election",
            entity="controller/3001",
            text="",
            severity="info",
            span_ms=3_218,
        )
    )
    quorum = summary.finish()[0]
    assert quorum.figures == {"elections": 1, "silenceMs": 3_218, "longestMs": 3_218}
    assert quorum.rows[0].text == "3001 leads epoch 5, 3.2 s after the one before last wrote"


@pytest.mark.parametrize(
    ("times", "interval"),
    [
        ([], None),
        ([0], None),
        ([0, 500, 1_000, 3_000], 500),
        ([0, 0], None),
        ([10_000, 5_000, 0, 500], 500),
        ([0, None, 700, 1_000], 300),
        ([0, 100, None, 900, None, 5_000], 100),
    ],
)
def test_the_interval_of_idle_records_is_between_neighbours_whose_clock_went_on(
    times: list[int | None], interval: int | None
) -> None:
    """None: another record is written at 50."""
    batches: list[object] = [Damage(file="f", position=0, offset=0, reason="x")]
    for base, time in enumerate(times):
        values = [NO_OP] if time is not None else [b"other"]
        stamp = 50 if time is None else time
        batches += iter_batches(
            encode_batch(base_offset=base, leader_epoch=1, timestamp_ms=stamp, values=values)
        )
    log = cast(MetadataLog, SimpleNamespace(batches=lambda: iter(batches)))
    assert idle_interval_ms(log) == interval


def test_the_idle_interval_is_that_of_the_first_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    stamps = [*range(0, 5_000, 500), *range(10_000, 60_000, 2_000)]
    idle = [
        encode_batch(base_offset=base, leader_epoch=1, timestamp_ms=stamp, values=[NO_OP])
        for base, stamp in enumerate(stamps)
    ]
    log = cast(MetadataLog, SimpleNamespace(batches=lambda: iter_batches(b"".join(idle))))
    assert idle_interval_ms(log) == 2_000
    monkeypatch.setattr(time_events, "_SAMPLE", 10)
    assert idle_interval_ms(log) == 500


@pytest.mark.parametrize("names_who", [False, True])
@pytest.mark.parametrize("has_default", [False, True])
@pytest.mark.parametrize(
    ("interval", "uncertain", "gaps", "has_records", "may_lack_votes"),
    [(None, 0, 0, True, True), (500, 1, 1, True, False), (500, 2, 3, True, False), (0, 0, 0, True, True),
     (None, 0, 0, False, True), (None, 0, 0, False, False)],
)  # fmt: skip
def test_a_summary_says_what_the_log_cannot_tell(
    interval: int | None,
    uncertain: int,
    gaps: int,
    has_records: bool,
    may_lack_votes: bool,
    has_default: bool,
    names_who: bool,
) -> None:
    settings = {"min.insync.replicas": "2"} if has_default else {"other": "1"}
    key = ConfigResource(4, "")
    image = cast(MetadataImage, SimpleNamespace(configs={key: settings}))
    told = cannot_decide(
        image=image,
        interval_ms=interval,
        uncertain=uncertain,
        gaps=gaps,
        names_who=names_who,
        has_records=has_records,
        may_lack_votes=may_lack_votes,
    )
    wanted = [
        ("what happened: no record is here", not has_records),
        ("whether there were times without a leader", interval is None and has_records),
        ("what happened in the gap:" if gaps == 1 else f"what happened in the {gaps} gaps:", gaps > 0),
        (f"whether {uncertain} fence{'s' * (uncertain > 1)} followed", uncertain > 0),
        ("min.insync.replicas in brokers' files", not has_default),
        ("whether its last records were committed", may_lack_votes and has_records),
        ("heartbeats, lag" if names_who else "who asked for a change; heartbeats, lag", True),
    ]
    assert len(told) == sum(due for _, due in wanted)
    for line, words in zip(told, [words for words, due in wanted if due], strict=True):
        assert line.startswith(words)


# How long something lasted, as events say it: by a number and in their text, which agree in every story.


DURATION = re.compile(
    r"(?:at least |at most |perhaps )?\b\d+(?:\.\d)? (?:ms|s|min|h|d)\b(?: \d+ (?:s|min|h)\b)?"
)
OF_CLOCKS = ("clock jumped", "time ran backwards")
"""They tell by how much a clock is wrong, which is no time that passed."""


@pytest.mark.parametrize("name", names())
def test_a_number_is_the_duration_that_the_text_tells(name: str, tmp_path: Path) -> None:
    survey = Survey(text_of(name), tmp_path)
    survey.write()
    for node in sorted(path.name for path in tmp_path.iterdir()):
        log = MetadataLog(PosixDisk(), str(tmp_path / node / METADATA))
        for event in events(log, lambda line: None):
            told = DURATION.findall(event.text)
            if event.kind in (*OF_CLOCKS, "election"):
                assert event.span_ms is None or event.kind == "election"
            elif event.span_ms is None:
                assert told == [] or event.rule == "idle-fenced-early", event
            else:
                assert f"{event.bound}{duration(event.span_ms)}" in told, event
