"""Tools and tables say the same of random histories, and no cause contradicts the state."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

from hypothesis import given, settings

from metaquorum.metadata.inspect.causes.brokers import broker_causes
from metaquorum.metadata.inspect.causes.elections import CHANGED_LEADER
from metaquorum.metadata.inspect.causes.losses import LOSSES
from metaquorum.metadata.inspect.causes.rule import Cause, Scene
from metaquorum.metadata.inspect.causes.table import partition_causes
from metaquorum.metadata.inspect.changes import changes
from metaquorum.metadata.inspect.changes.change_steps import PartitionStep
from metaquorum.metadata.inspect.changes.changes import ChangeFeed
from metaquorum.metadata.inspect.entities.targets import parse_target
from metaquorum.metadata.inspect.timeline.event import TimelineEvent
from metaquorum.metadata.inspect.timeline.timeline import Timeline
from metaquorum.metadata.inspect.why.why import Chain
from metaquorum.metadata.records.batches import decode_batch
from metaquorum.metadata.records.control import LeaderChangeMessage
from metaquorum.pipeline.intervals.tables import incidents
from metaquorum.storage.batches.batch import RecordBatch
from tests.properties.random_histories import PARTITIONS, histories
from tests.unit.pipeline.intervals.telling import named, replayed, tables_of
from tests.unit.pipeline.intervals.test_windows import taken_together

COMPARED = ("incidents", "failovers", "partition_states", "broker_sessions", "quorum_epochs")
SLICE = 2
"""A batch with so many partitions may be part of a split fence here."""


class SmallSlices:
    """Controllers split fences of thousands of partitions; here, of two."""

    def __enter__(self) -> None:
        rooms: tuple[Any, ...] = (changes, incidents)
        self._patches = [patch.object(room, "SLICE_MIN", SLICE) for room in rooms]
        for one in self._patches:
            one.start()

    def __exit__(self, *_: object) -> None:
        for one in self._patches:
            one.stop()


def items(log: list[RecordBatch]) -> Iterator[tuple[int, int, list[tuple[int, object]]]]:
    for batch in log:
        records = [(at.offset, at.record) for at in decode_batch(batch)]
        yield batch.header.leader_epoch, batch.header.max_timestamp_ms, records


def events_of(log: list[RecordBatch]) -> list[TimelineEvent]:
    timeline = Timeline()
    events = [event for item in items(log) for event in timeline.batch(*item)]
    return [*events, *timeline.finish()]


Rows = dict[str, list[dict[str, Any]]]


def rows_of(log: list[RecordBatch], *, in_windows: bool) -> Rows:
    replay = taken_together(log, 64)[0] if in_windows else replayed(log)
    tables = tables_of(replay)
    found = {name: named(name, rows) for name, rows in tables.items() if name in COMPARED}
    for row in (row for rows in found.values() for row in rows if row.get("to_offset") is not None):
        assert row["to_offset"] >= row["from_offset"], row
    return found


def outs(log: list[RecordBatch], events: list[TimelineEvent]) -> set[tuple[int, str, str | None, int]]:
    """(offset, broker, rule, time) of each time that a broker stopped serving, according to the timeline."""
    rules = {
        (event.offset, event.entity): event
        for event in events
        if event.kind.startswith("broker ") and event.kind != "broker unfenced"
    }
    feed, found = ChangeFeed(), set()
    for item in items(log):
        for step in feed.batch(*item).brokers:
            if step.before is None or not step.before.is_active:
                continue
            if step.after is None or not step.after.is_active or step.is_registration:
                event = rules[step.offset, f"broker/{step.broker_id}"]
                found.add((step.offset, event.entity, event.rule, event.time_ms))
    return found


def elections_of(log: list[RecordBatch], events: list[TimelineEvent]) -> set[tuple[int, str | None, int]]:
    times = {event.offset: event.time_ms for event in events}
    found, before = set(), None
    for _, time_ms, records in items(log):
        for offset, record in records:
            if isinstance(record, LeaderChangeMessage):
                if before not in (None, record.leader_id):
                    rules = {
                        event.rule for event in events if event.offset == offset and event.kind == "election"
                    }
                    (rule,) = rules & set(CHANGED_LEADER)
                    assert times[offset] == time_ms
                    found.add((offset, rule, time_ms))
                before = record.leader_id
    return found


LOSS_RULES = {rule.name for rule in LOSSES.rules}


def loss_of(chain: list[Any], offset: int, broker_id: int) -> tuple[str, int]:
    """(rule, time) by which `why` explains that a broker lost the leadership with the record at `offset`."""
    (link,) = [link for link in chain if link.offset == offset]
    rules = [cause.rule for cause in link.causes if cause.rule in LOSS_RULES and cause.broker_id == broker_id]
    return (rules or ["unexplained"])[0], link.time_ms


@settings(max_examples=40, deadline=None)
@given(histories())
def test_tables_and_tools_say_the_same(log: list[RecordBatch]) -> None:
    with SmallSlices():
        events = events_of(log)
        chains = []
        for index in range(PARTITIONS):
            chain = Chain(parse_target(f"topic/t/{index}"))
            for item in items(log):
                chain.batch(*item)
            chains.append(chain.result().links)
        both = [rows_of(log, in_windows=in_windows) for in_windows in (False, True)]
    for rows in both:
        incidents = rows["incidents"]
        assert outs(log, events) == {
            (row["from_offset"], row["who"], row["cause"], row["from_time"])
            for row in incidents
            if row["what"] == "broker-out"
        }
        assert elections_of(log, events) == {
            (row["to_offset"], row["cause"], row["to_time"])
            for row in incidents
            if row["what"] == "leader-changed"
        }
        assert {(event.offset, event.entity) for event in events if event.kind == "directory failed"} == {
            (row["from_offset"], row["who"]) for row in incidents if row["what"] == "directory-lost"
        }
        for row in rows["failovers"]:
            links = chains[row["partition"]]
            rule, time_ms = loss_of(links, row["from_offset"], row["old_leader"])
            assert (row["cause"], row["from_time"]) == (rule, time_ms), row
        lost = sorted(
            (event.offset, path)
            for event in events
            if event.kind == "leaderless"
            for path in event.entities
            if path.startswith("topic/")
        )
        open_for_a_while = [
            row
            for row in rows["failovers"]
            if row["duration_ms"] is None or row["to_offset"] != row["from_offset"]
        ]
        assert len(lost) == len(open_for_a_while)
        unclean = sum(
            path.startswith("topic/")
            for event in events
            if event.kind == "unclean election"
            for path in event.entities
        )
        assert unclean == sum(row["unclean"] for row in rows["partition_states"])


# ---- facts ------------------------------------------------------------------------------------


def numbers(text: str) -> tuple[int, ...]:
    return tuple(int(one) for one in text.split(",") if one)


class Facts:
    """What the state says, for the words of causes."""

    def __init__(self, feed: ChangeFeed, led_before: set[int]) -> None:
        self._brokers = feed.brokers
        self._led_before = led_before

    def is_active(self, broker_id: int) -> bool:
        known = self._brokers.get(broker_id)
        return known is not None and known.is_active

    def check(self, cause: Cause, step: PartitionStep | None) -> None:
        text = cause.text
        for said, number in re.findall(
            r"broker (\d+) is (fenced|not registered|in controlled shutdown)", text
        ):
            known = self._brokers.get(int(said))
            truth = {
                "not registered": known is None,
                "fenced": known is not None and known.fenced,
                "in controlled shutdown": known is not None and known.in_controlled_shutdown,
            }
            assert truth[number], cause
        if (
            cause.rule in ("idle-fenced-early", "stopped-or-silent", "shutdown-finished")
            and "led nothing" in text
        ):
            assert cause.broker_id not in self._led_before, cause
        if step is not None and step.before is not None and step.after is not None:
            self._of_partition(cause, step)

    def _of_partition(self, cause: Cause, step: PartitionStep) -> None:
        text, before, after = cause.text, step.before, step.after
        assert before is not None and after is not None
        for which, listed in re.findall(r"(?<!the )(ISR|ELR) \[([\d,]*)\](?! ->)", text):
            assert numbers(listed) == (before.isr if which == "ISR" else before.elr), cause
        for listed in re.findall(r"the ISR was \[([\d,]*)\]", text):
            assert numbers(listed) == before.isr, cause
        if "none of it is active" in text:
            assert not any(map(self.is_active, before.isr)), cause
        for who in map(int, re.findall(r"broker (\d+) (?:left the ISR|was active)", text)):
            assert self.is_active(who) and (who in before.isr or who == before.leader), cause
        for who in map(int, re.findall(r"broker (\d+)(?: \([^)]*\(.*?\)\))? (?:was|is) in the ISR", text)):
            assert who in before.isr, cause
        for who in map(int, re.findall(r"broker (\d+) (?:caught up|joined)", text)):
            assert who in after.isr and who not in before.isr, cause
        for who in map(int, re.findall(r"broker (\d+) gave up", text)):
            assert who == before.leader != after.leader, cause
        if "was elected although the ISR was" in text:
            assert after.leader not in before.isr, cause
        if "no one was in the ISR" in text:
            assert not before.isr and not before.elr, cause


@settings(max_examples=60, deadline=None)
@given(histories())
def test_no_cause_says_what_the_state_contradicts(log: list[RecordBatch]) -> None:
    feed = ChangeFeed()
    for item in items(log):
        topics = feed.state.topics.freeze()
        led_before = {info.leader for at in topics.all() for info in topics.partitions_of(at.topic_id)}
        batch = feed.batch(*item)
        facts, scene = Facts(feed, led_before), Scene(batch=batch, feed=feed)
        for broker_step in batch.brokers:
            for cause in broker_causes(broker_step, scene):
                facts.check(cause, None)
        for step in batch.partitions:
            for cause in partition_causes(step, scene):
                facts.check(cause, step)
