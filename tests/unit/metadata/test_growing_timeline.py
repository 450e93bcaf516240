"""The timeline of a log that grows says what that of the whole log says."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest

from metaquorum.metadata.inspect.causes.rule import SEVERITIES, WARNING
from metaquorum.metadata.inspect.log.clock import LogClock, RunningClock
from metaquorum.metadata.inspect.log.log import MetadataLog
from metaquorum.metadata.inspect.log.points import END, Point
from metaquorum.metadata.inspect.repair.log_copy import NodeFiles
from metaquorum.metadata.inspect.timeline.event import TimelineEvent, at_least
from metaquorum.metadata.inspect.timeline.story import GrowingStory, events
from metaquorum.metadata.inspect.walk.batch_filter import SLICE_MIN
from metaquorum.metadata.records import types as r
from metaquorum.storage.batches.batch import RecordBatch
from metaquorum.storage.disk.interface import join, read_file
from metaquorum.storage.files.snapshots import snapshot_path
from metaquorum.storage.log.segment import segment_name
from tests.unit.metadata.made_logs import ORDERS, STORY, add_snapshot, make_node, memory_disk, strict, topic
from tests.unit.metadata.random_logs import add_snapshots, random_node


class Copy:
    """A log that grows by parts of another one."""

    def __init__(self, original: MetadataLog, start: int = 0) -> None:
        self.original, self.disk = original, memory_disk()
        self.directory = "copy/__cluster_metadata-0"
        self.disk.make_directory(self.directory)
        self.path = ""
        self.begin(start)

    def begin(self, offset: int) -> None:
        self.path = join(self.directory, segment_name(offset))
        self.append(b"")

    def append(self, data: bytes) -> None:
        file = self.disk.open_append(self.path)
        file.append(data)
        file.close()

    def take(self, batches: list[RecordBatch]) -> None:
        self.append(b"".join(one.data for one in batches))

    def snapshots(self) -> None:
        for at in self.original.snapshots():
            source, target = (snapshot_path(each, at) for each in (self.original.directory, self.directory))
            file = self.disk.open_append(target)
            file.append(read_file(self.original.disk, source))
            file.close()

    @property
    def log(self) -> MetadataLog:
        return MetadataLog(self.disk, self.directory)


def parts(batches: list[RecordBatch], rng: random.Random) -> Iterator[list[RecordBatch]]:
    at = 0
    while at < len(batches):
        size = rng.choice((1, 1, 2, 5, 40, 200))
        yield batches[at : at + size]
        at += size


def told(node: NodeFiles, severity: str, start: Point | None = None, end: Point = END) -> list[TimelineEvent]:
    return list(events(node.log, lambda line: None, shown=at_least(severity), start=start, end=end))


@pytest.mark.parametrize("severity", [SEVERITIES[0], WARNING])
@pytest.mark.parametrize("seed", range(6))
def test_what_is_told_while_a_log_grows_is_what_the_whole_log_tells(seed: int, severity: str) -> None:
    rng = random.Random(seed)
    node = random_node(memory_disk(), seed, wild=0.05, garbage=False, steady=seed % 2 == 0)
    copy = Copy(node.log)
    story = GrowingStory(copy.log, lambda line: None, shown=at_least(severity))
    found = list(story.more())
    for part in parts(strict(node.log), rng):
        torn = part[0].data[: rng.randrange(1, len(part[0].data))]
        copy.append(torn)
        found += story.more()
        copy.append(b"".join(one.data for one in part)[len(torn) :])
        if rng.random() < 0.2:
            copy.begin(part[-1].header.next_offset)
        found += story.more()
    found += story.finish()
    story.close()
    assert found == told(node, severity)
    assert story.place == node.log.end_offset and not story.is_over


@pytest.mark.parametrize("seed", range(3))
def test_a_log_without_its_beginning_grows_from_its_snapshot(seed: int) -> None:
    node = random_node(memory_disk(), seed, wild=0.01, garbage=False)
    add_snapshots(node, seed)
    oldest = node.log.snapshots()[0].offset
    behind = [one for one in strict(node.log) if one.header.base_offset >= oldest]
    whole, copy = Copy(node.log, oldest), Copy(node.log, oldest)
    for each in (whole, copy):
        each.snapshots()
    whole.take(behind)
    first = next(
        at for at, one in enumerate(behind) if one.header.next_offset >= node.log.snapshots()[-1].offset
    )
    copy.take(behind[: first + 1])
    story = GrowingStory(copy.log, lambda line: None)
    found = list(story.more())
    for one in behind[first + 1 :]:
        copy.take([one])
        found += story.more()
    found += story.finish()
    assert found == list(events(whole.log, lambda line: None))


def test_records_that_the_copy_missed_are_a_gap_that_a_snapshot_fills() -> None:
    node = make_node(memory_disk(), STORY)
    add_snapshot(node, 10)
    batches = strict(node.log)
    ends = [one.header.next_offset for one in batches]
    gone, behind = ends.index(10) - 1, ends.index(10) + 1
    copy = Copy(node.log)
    copy.take(batches[:gone])
    story = GrowingStory(copy.log, lambda line: None)
    found = list(story.more())
    copy.snapshots()
    copy.begin(10)
    copy.take(batches[behind : behind + 1])
    found += story.more()
    assert [each.reason for each in story.seen.limits.coverage] == ["missing"]
    copy.take(batches[behind + 1 :])
    found += story.more()
    found += story.finish()
    assert found == list(events(copy.log, lambda line: None))


def test_an_end_ends_the_story_and_a_beginning_is_where_it_begins() -> None:
    node = make_node(memory_disk(), STORY)
    copy = Copy(node.log)
    start, end = Point(offset=4), Point(offset=strict(node.log)[-2].header.next_offset)
    story = GrowingStory(copy.log, lambda line: None, start=start, end=end)
    found = list(story.more())
    for one in strict(node.log):
        assert not story.is_over
        copy.take([one])
        found += story.more()
    assert story.is_over
    assert found + list(story.finish()) == told(node, SEVERITIES[0], start=start, end=end)


def test_what_waits_for_a_fence_is_told_when_none_comes() -> None:
    lost = [r.PartitionChangeRecord(index, ORDERS, leader=-1) for index in range(SLICE_MIN)]
    node = make_node(memory_disk(), [*STORY[:4], (1, topic("orders", ORDERS, SLICE_MIN)), (1, lost)])
    copy = Copy(node.log)
    story = GrowingStory(copy.log, lambda line: None, shown=at_least(WARNING))
    copy.take(strict(node.log))
    assert list(story.more()) == [] and story.holds_back
    (found,) = story.release()
    assert found.kind == "leaderless" and not story.holds_back
    assert list(story.release()) == []


def test_a_clock_is_read_again_if_it_jumps_behind_what_was_read() -> None:
    stamps = [1_000, 2_000, 900_000_000, 3_000, 4_000]
    there, read = list[int](), list[int]()

    def clock() -> LogClock:
        read.append(len(there))
        bases = np.arange(len(there))
        return LogClock(bases, bases + 1, np.array(there))

    running = RunningClock(clock)
    times = []
    for offset, stamp in enumerate(stamps):
        there.append(stamp)
        times.append(running.time_ms(offset, stamp))
    assert read == [1, 3, 4], "at first, and where it jumps"
    assert times == stamps
    assert [running.time_ms(5, 5_000), running.time_ms(6, 6_000)] == [5_000, 6_000]
