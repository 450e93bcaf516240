"""Laws of trimmed logs: what a record alone shows is reported for every cut as for the whole log, and after
the oldest snapshot everything is.
"""

from __future__ import annotations

import random
import re
from functools import cache
from pathlib import Path

import msgspec
import pytest

from metaquorum.metadata.inspect.log.coverage import STATE_UNKNOWN
from metaquorum.metadata.inspect.log.log import MetadataLog, open_log
from metaquorum.metadata.inspect.log.points import Point
from metaquorum.metadata.inspect.timeline.event import TimelineEvent
from metaquorum.metadata.inspect.timeline.story import Seen, events
from metaquorum.metadata.records.batches import decode_readable
from metaquorum.metadata.records.types import TopicRecord
from metaquorum.storage.batches.batch import RecordBatch
from metaquorum.storage.disk.posix import PosixDisk
from metaquorum.storage.log.segment import segment_name
from metaquorum.storage.uuids import uuid_to_text
from tests.conftest import needs_shared_data, shared_data_path

ROOT = shared_data_path() or Path("absent")
pytestmark = [
    pytest.mark.shared_data,
    needs_shared_data,
]
LOGS = (
    "kafka-3.7/controller-3000/__cluster_metadata-0",
    "kafka-3.7/upgrade/controller-3000/__cluster_metadata-0",
    "kraft-wild/kafka-4.0-with-snapshot/kafka/kafka-data/__cluster_metadata-0",
)
ALONE = frozenset(
    {
        *("election", "voters changed", "voters repeated", "feature", "controller registered"),
        "controller unregistered",
        "broker registered",
        *("broker unregistered", "broker fenced", "broker unfenced", "broker in controlled shutdown"),
        *("topic created", "topic deleted", "partitions added", "config changed", "acl added"),
        *("acl removed", "user changed", "quota changed", "token set", "token removed", "producer ids"),
        *("migration", "transaction begun", "transaction ended", "transaction aborted", "unknown record"),
    }
)
"""Kinds of events that a record shows by itself."""
STATED = frozenset({"broker registered", "broker fenced", "broker unfenced", "broker in controlled shutdown"})
"""Those of them whose text also contains something of the state before."""
CUTS = 12


@cache
def batches(name: str) -> list[RecordBatch]:
    found = open_log(PosixDisk(), str(ROOT / name)).batches()
    return [item for item in found if isinstance(item, RecordBatch)]


@cache
def whole(name: str) -> list[TimelineEvent]:
    return list(events(open_log(PosixDisk(), str(ROOT / name)), pytest.fail))


def cut(
    directory: Path, name: str, begin: int, snapshots: list[int], lost: tuple[int, int] = (0, 0)
) -> MetadataLog:
    """The log from the batch at `begin` on without those that are `lost`, with the snapshots that end at
    `snapshots`."""
    directory.mkdir(parents=True)
    left = [batch for batch in batches(name) if not lost[0] <= batch.header.base_offset < lost[1]]
    kept = [batch for batch in left if batch.header.base_offset >= begin]
    (directory / segment_name(begin)).write_bytes(b"".join(bytes(batch.data) for batch in kept))
    for path in (ROOT / name).glob("0*.checkpoint"):
        if int(path.name[:20]) in snapshots:
            (directory / path.name).write_bytes(path.read_bytes())
    return open_log(PosixDisk(), str(directory))


@cache
def names(name: str) -> dict[str, str]:
    """Names of all topics by their ids."""
    found = [one for batch in batches(name) if not batch.header.is_control for one in decode_readable(batch)]
    return {
        uuid_to_text(one.record.topic_id): one.record.name
        for one in found
        if isinstance(one.record, TopicRecord)
    }


def named(name: str, event: TimelineEvent) -> TimelineEvent:
    """The event with a topic's id replaced with its name, if no record had the name."""
    for topic_id, text in names(name).items():
        if topic_id in event.text:
            event = msgspec.structs.replace(
                event,
                text=event.text.replace(topic_id, text),
                entity=event.entity.replace(topic_id, text),
                entities=tuple(one.replace(topic_id, text) for one in event.entities),
            )
    return event


def place(event: TimelineEvent) -> tuple[int, str, str, int]:
    entity = event.entity
    if event.kind.startswith("still ") and event.entities:
        entity = min(event.entities)  # the first entity began first, and a cut log need not know it
    return event.offset, event.kind, entity, event.time_ms


@pytest.mark.parametrize("name", LOGS)
def test_records_tell_of_every_cut_what_they_tell_of_the_whole_log(name: str, tmp_path: Path) -> None:
    ends = [at.offset for at in open_log(PosixDisk(), str(ROOT / name)).snapshots()]
    starts = [batch.header.base_offset for batch in batches(name)][1:]
    rng = random.Random(name)
    for number, begin in enumerate(rng.sample(starts, min(CUTS, len(starts)))):
        later = [end for end in ends if end >= begin]
        chosen = rng.sample(ends, min(3, len(ends))) if number % 3 else []
        known = min((end for end in chosen if end in later), default=None)
        log = cut(tmp_path / str(number), name, begin, chosen)
        seen = Seen()
        told = [named(name, event) for event in events(log, pytest.fail, seen=seen)]
        limit = log.end_offset if known is None else known
        expected = {
            place(event): event
            for event in whole(name)
            if begin <= event.offset < limit and event.kind in ALONE
        }
        alone = {place(event): event for event in told if event.offset < limit and event.kind in ALONE}
        assert expected.keys() <= alone.keys(), (begin, known)
        for more in alone.keys() - expected.keys():
            # Only the state shows that the value was already set.
            assert more[1] == "config changed" or "(was not known)" in alone[more].text, (begin, known)
        for key, event in expected.items():
            if event.kind == "election" and event.text != alone[key].text:
                assert key == min(one for one in alone if one[1] == "election")  # the last leader is unknown
            elif event.kind == "controller registered":  # whether the process is new is not known
                assert event.text.startswith(alone[key].text)
            elif event.kind not in STATED | {"config changed"}:
                assert event.text == alone[key].text
        ranges = [(one.from_offset, one.to_offset, one.reason) for one in seen.limits.coverage]
        assert ranges == ([] if known == begin else [(begin, known, STATE_UNKNOWN)])
        check_snapshots(name, told)
        if known is not None:
            assert places_from(told, known) == places_from(whole(name), known), (begin, known)
            assert not any("at least" in event.text or "or before" in event.text for event in whole(name))


def is_of_a_snapshot(event: TimelineEvent) -> bool:
    """Whether the event comes from a snapshot and not from a record: a whole log does not report it."""
    return event.kind.startswith(("already ", "no longer ")) or (
        event.kind == "total outage ended" and event.entity == "broker"
    )


def places_from(told: list[TimelineEvent], offset: int) -> list[tuple[int, str, str, int]]:
    return sorted(place(event) for event in told if event.offset >= offset and not is_of_a_snapshot(event))


BEGINS = {
    "leaderless": {"leaderless"},
    "under min isr": {"under min isr"},
    "reassigning": {"reassignment started"},
    "fenced": {"broker fenced", "broker registered"},
    "no broker": {"total outage"},
}
ENDS = {
    "leaderless": {"leader changed", "unclean election"},
    "under min isr": {"min isr restored"},
    "reassigning": {"reassignment completed", "reassignment cancelled", "replicas changed"},
    "fenced": {"broker unfenced", "broker unregistered"},
    "no broker": {"total outage ended"},
}
Stretches = dict[str, list[tuple[tuple[int, int], tuple[int, int]]]]
FOREVER = (1 << 62, 1 << 62)


@cache
def stretches(name: str, kind: str) -> Stretches:
    """When `kind` held in the whole log, by path: begin and end, each an offset and a time."""
    found: Stretches = {}
    open_: dict[str, tuple[int, int]] = {}
    for event in whole(name):
        at = (event.offset, event.time_ms)
        paths = ("broker",) if kind == "no broker" else event.entities
        if event.kind == "topic deleted":
            paths = tuple(path for path in open_ if path.startswith(f"{event.entity}/"))
        if event.kind in ENDS[kind] or event.kind == "topic deleted":
            for path in paths:
                if path in open_:
                    found.setdefault(path, []).append((open_.pop(path), at))
        elif event.kind in BEGINS[kind]:
            for path in paths:
                open_.setdefault(path, at)
    for path, begun in open_.items():
        found.setdefault(path, []).append((begun, FOREVER))
    return found


def check_of_snapshot(name: str, event: TimelineEvent) -> None:
    """What an event without a record reports is true in the whole log."""
    kind = event.kind.removeprefix("already ").removeprefix("no longer ")
    kind = "no broker" if kind == "total outage ended" else kind
    here = (event.offset, event.time_ms)
    for path in event.entities:
        known = stretches(name, kind).get(path, [])
        around = [(begun, ended) for begun, ended in known if begun[0] < event.offset <= ended[0]]
        if event.kind.startswith("already "):
            assert around, (event, known)
        else:
            assert not any(begun < here < ended for begun, ended in around), (event, known)
            assert event.span_ms is not None and event.bound in ("at most ", "perhaps ")
            earliest = event.time_ms - event.span_ms
            spans = [(begun, ended) for begun, ended in known if begun[1] >= earliest and ended[0] <= here[0]]
            assert spans or event.bound == "perhaps ", (event, known)


def check_bound(event: TimelineEvent, true: TimelineEvent) -> None:
    """The duration that a cut log reports is consistent with the actual one."""
    if event.span_ms is None or true.span_ms is None or event.kind in ("election", "gap in time"):
        return
    if set(event.entities) != set(true.entities):
        return  # the others moved in an event of their own
    match event.bound:
        case "":
            assert event.span_ms == true.span_ms, (event, true)
        case "at least ":
            assert event.span_ms <= true.span_ms, (event, true)
        case "at most ":
            assert event.span_ms >= true.span_ms, (event, true)


def check_snapshots(name: str, told: list[TimelineEvent]) -> None:
    true = {place(event): event for event in whole(name)}
    for event in told:
        if is_of_a_snapshot(event):
            check_of_snapshot(name, event)
        elif place(event) in true:
            check_bound(event, true[place(event)])


@pytest.mark.parametrize("name", LOGS)
def test_what_no_record_of_a_damaged_log_says_is_so_in_the_whole_one(name: str, tmp_path: Path) -> None:
    ends = [at.offset for at in open_log(PosixDisk(), str(ROOT / name)).snapshots()]
    starts = [batch.header.base_offset for batch in batches(name)]
    rng = random.Random(f"holes {name}")
    found = set()
    for number in range(CUTS):
        first = rng.randrange(1, len(starts) - 1)
        lost = (starts[first], starts[min(first + rng.choice((1, 5, 50, 500)), len(starts) - 1)])
        begin = rng.choice((0, rng.choice(starts[:first])))
        log = cut(tmp_path / str(number), name, begin, rng.sample(ends, min(3, len(ends))), lost)
        told = [named(name, event) for event in events(log, [].append)]
        check_snapshots(name, told)
        found |= {event.kind for event in told if is_of_a_snapshot(event)}
        cure = min((at.offset for at in log.snapshots() if at.offset >= lost[1]), default=None)
        if cure is not None:
            assert places_from(told, cure) == places_from(whole(name), cure), (begin, lost, cure)
    if name == LOGS[0]:
        assert {"already under min isr", "no longer fenced", "no longer leaderless"} <= found, found


@pytest.mark.parametrize("name", LOGS)
def test_a_timeline_from_a_place_is_the_end_of_the_whole_one(name: str) -> None:
    log = open_log(PosixDisk(), str(ROOT / name))
    rng = random.Random(name)
    for start in rng.sample([batch.header.base_offset for batch in batches(name)], CUTS):
        told = list(events(log, pytest.fail, start=Point(offset=start)))
        assert places_from(told, start) == places_from(whole(name), start)
        assert all(event.offset >= start for event in told)
        texts = {place(event): event.text for event in whole(name)}
        for event in told:
            exact = re.sub(r"at least | or before", "", event.text) == event.text
            assert not exact or event.text == texts[place(event)], event


def test_behind_a_hole_the_next_snapshot_says_what_is(tmp_path: Path) -> None:
    """A segment in the middle is lost: from the first snapshot after it on, everything is reported as
    before."""
    name = LOGS[0]
    home = tmp_path / "log"
    home.mkdir()
    for path in (ROOT / name).iterdir():
        if path.suffix in (".log", ".checkpoint") and "00000000000000001850.log" not in path.name:
            (home / path.name).write_bytes(path.read_bytes())
    seen = Seen()
    problems: list[str] = []
    told = list(events(open_log(PosixDisk(), str(home)), problems.append, seen=seen))
    assert problems
    assert [(one.from_offset, one.to_offset) for one in seen.limits.coverage] == [(1850, 3299)]
    assert "up to the snapshot that ends at 3431" in next(iter(seen.limits.coverage)).text
    assert places_from(told, 3431) == places_from(whole(name), 3431)
    check_snapshots(name, told)
    assert [event for event in told if event.offset < 1850] == [
        event for event in whole(name) if event.offset < 1850
    ]


def test_a_timeline_from_a_time_is_the_end_of_the_whole_one() -> None:
    name = LOGS[0]
    log = open_log(PosixDisk(), str(ROOT / name))
    for start in random.Random(name).sample(batches(name), 4):
        time_ms = start.header.max_timestamp_ms
        told = list(events(log, pytest.fail, start=Point(time_ms=time_ms)))
        expected = [event for event in whole(name) if event.time_ms >= time_ms]
        assert [place(event) for event in told] == [place(event) for event in expected]


def test_a_timeline_reads_no_segment_before_its_snapshot(tmp_path: Path) -> None:
    home = tmp_path / "log"
    home.mkdir()
    for path in (ROOT / LOGS[0]).iterdir():
        if path.suffix in (".log", ".checkpoint") or path.name == "leader-epoch-checkpoint":
            (home / path.name).write_bytes(path.read_bytes())
    first = home / segment_name(0)
    first.write_bytes(b"\xff" * first.stat().st_size)  # a reader finds damage
    told = list(events(open_log(PosixDisk(), str(home)), pytest.fail, start=Point(offset=4000)))
    assert places_from(told, 4000) == places_from(whole(LOGS[0]), 4000)
