"""Which partitions are without a leader, under min ISR or being reassigned, and since when."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from metaquorum.metadata.image import BROKER_RESOURCE, TOPIC_RESOURCE, ImageBuilder, MetadataImage
from metaquorum.metadata.image.chunk import CHUNK_SHIFT, N_ISR, N_REPLICAS, TOPIC, IntArray, RowArray
from metaquorum.metadata.image.types import NO_LEADER, ConfigResource, PartitionInfo
from metaquorum.metadata.inspect.changes.change_steps import Place
from metaquorum.metadata.inspect.changes.changes import (
    MIN_INSYNC_REPLICAS,
    BatchChanges,
    ChangeFeed,
    PartitionKey,
    PartitionStep,
)
from metaquorum.metadata.inspect.changes.creations import all_led_and_in_sync
from metaquorum.metadata.settings.keys import MAX_INT, whole_number
from metaquorum.storage.uuids import uuid_to_text

# An ongoing span of time, and how precisely its beginning is known.

EXACT, LEAST, MOST, PERHAPS = "", "at least ", "at most ", "perhaps "
"""The words before a duration. The span began at its place; there or earlier; there, or again after lost
records; any of these."""

_LOST = {EXACT: MOST, LEAST: PERHAPS}


class OpenSpan(NamedTuple):
    """Since when something holds, by offset and Unix ms."""

    offset: int
    time_ms: int
    bound: str = EXACT

    def over_lost(self) -> OpenSpan:
        """The same span after lost records, among which it may have ended and begun again."""
        return self._replace(bound=_LOST.get(self.bound, self.bound))

    @property
    def or_before(self) -> str:
        """` or before`, if that is possible."""
        return " or before" if self.bound in (LEAST, PERHAPS) else ""


def bound_of(spans: list[OpenSpan]) -> str:
    """The words before the duration of the oldest of several spans."""
    bounds = {span.bound for span in spans}
    return next((one for one in (PERHAPS, LEAST) if one in bounds), min(spans).bound)


INT32_MAX = 2**31 - 1


Spans = dict[PartitionKey, OpenSpan]


@dataclass(slots=True, kw_only=True)
class SpanChanges:
    """The spans that one batch began and ended. An ended span is (step, span)."""

    time_ms: int
    led_again: Spans = field(default_factory=dict)
    under: list[tuple[PartitionStep, int]] = field(default_factory=list)
    restored: list[tuple[PartitionStep, OpenSpan]] = field(default_factory=list)


class SnapshotSpans(NamedTuple):
    """Spans of one kind according to a snapshot, without a record: `already` are open, `ended` are over."""

    kind: str
    already: Spans
    ended: Spans


class PartitionSpans:
    """Keeps the open spans by partition: `leaderless`, `under_min` and `moving`."""

    def __init__(self, feed: ChangeFeed, image: MetadataImage | None) -> None:
        self._feed = feed
        self.leaderless: Spans = {}
        self.under_min: Spans = {}
        self.moving: Spans = {}
        self._wanted_of: dict[bytes, int] = {}
        self._noted: tuple[Spans, Spans, Spans] = {}, {}, {}
        self.learned: tuple[SnapshotSpans, ...] = ()
        if image is not None and feed.is_known:
            self.learn((image.provenance.offset, image.provenance.timestamp_ms))

    def learn(self, moment: Place) -> None:
        """Takes the open spans from the state that the feed has learned; what this begins and
        ends is in `learned`."""
        before = self.kinds()
        self._rebuild(OpenSpan(*moment, LEAST))
        self.learned = tuple(
            SnapshotSpans(
                kind,
                {key: span for key, span in now.items() if key not in was},
                {key: span.over_lost() for key, span in was.items() if key not in now},
            )
            for (kind, was), now in zip(before.items(), self.kinds().values(), strict=True)
        )

    def kinds(self) -> dict[str, Spans]:
        """The spans of each kind."""
        return {"leaderless": self.leaderless, "under min isr": self.under_min, "reassigning": self.moving}

    def lose(self) -> None:
        """Records are lost: open spans may have ended there and begun again."""
        for spans in self.kinds().values():
            spans.update({key: span.over_lost() for key, span in spans.items()})

    def forget(self) -> Spans:
        """The state is unknown from here on. Returns the leaderless spans, for what records add later."""
        leaderless, self.leaderless = self.leaderless, {}
        return leaderless

    def forget_lost(self, leaderless: Spans) -> None:
        """At the end of a log whose state is unknown, keeps only spans that began after the lost records, and
        adds those that records show to be `leaderless`."""
        self.leaderless |= leaderless
        for spans in self.kinds().values():
            for key in [key for key, span in spans.items() if span.bound != EXACT]:
                del spans[key]

    def named(self, key: PartitionKey) -> tuple[str, str]:
        """A partition's name and path."""
        topic = self._feed.topic_name(key[0]) or uuid_to_text(key[0])
        return f"{topic}-{key[1]}", f"topic/{topic}/{key[1]}"

    def note(self) -> None:
        """A transaction begins that may be aborted: saves the open spans."""
        self._noted = (dict(self.leaderless), dict(self.under_min), dict(self.moving))

    def take_back(self, now: Place) -> None:
        """Restores the spans from where a transaction without effect began."""
        for spans, noted in zip(self.kinds().values(), self._noted, strict=True):
            spans.update(noted)
        self._rebuild(OpenSpan(*now))

    def _rebuild(self, now: OpenSpan) -> None:
        """Finds the open spans in the state; those already open keep their start, others begin `now`."""
        leaderless: Spans = {}
        under_min: Spans = {}
        moving: Spans = {}
        for info in self._everything():
            key = (info.topic_id, info.index)
            if info.leader == NO_LEADER:
                leaderless[key] = self.leaderless.get(key, now)
            if self.is_under_min(info):
                under_min[key] = self.under_min.get(key, now)
            if info.adding or info.removing:
                moving[key] = self.moving.get(key, now)
        self.leaderless, self.under_min, self.moving = map(_by_place, (leaderless, under_min, moving))

    def _everything(self) -> Iterable[PartitionInfo]:
        topics = self._feed.state.topics.freeze()
        for topic in topics.all():
            yield from topics.partitions_of(topic.topic_id)

    def min_isr(self, info: PartitionInfo) -> int:
        """The partition's min.insync.replicas according to the log (1 if not set), capped at its number of
        replicas, as in Kafka."""
        return min(self._wanted(info.topic_id), len(info.replicas))

    def least_isr(self, slots: IntArray) -> IntArray:
        """min.insync.replicas of topics, by their slots in the columns."""
        topics = self._feed.state.topics
        found, places = np.unique(slots, return_inverse=True)
        wanted = [min(self._wanted(topics.by_slot[slot]), INT32_MAX) for slot in found.tolist()]
        return np.array(wanted, dtype=np.int32)[places]

    def _wanted(self, topic_id: bytes) -> int:
        """min.insync.replicas of a topic."""
        wanted = self._wanted_of.get(topic_id)
        if wanted is None:
            name = self._feed.topic_name(topic_id)
            setting = None if name is None else self._feed.topic_config(name, MIN_INSYNC_REPLICAS)
            wanted = self._wanted_of[topic_id] = _wanted(setting)
        return wanted

    def forget_settings(self) -> None:
        """Call after anything that may have changed a setting or a topic's name."""
        self._wanted_of.clear()

    def all_fine(self, builder: ImageBuilder, topic_ids: list[bytes]) -> bool:
        """Whether all partitions of these topics have a leader and their minimum ISR."""
        self.forget_settings()
        wanted = [self._wanted(topic_id) for topic_id in topic_ids]
        self.forget_settings()  # the caller may undo what it just applied
        return all_led_and_in_sync(builder, topic_ids, wanted)

    def is_under_min(self, info: PartitionInfo) -> bool:
        return len(info.isr) < self.min_isr(info)

    def batch(self, batch: BatchChanges) -> SpanChanges:
        """Updates the spans with one batch."""
        changes = SpanChanges(time_ms=batch.time_ms)
        last: dict[PartitionKey, PartitionStep] = {}
        for step in batch.partitions:
            key = step.key
            last[key] = step
            self._leader(step, key, batch.time_ms, changes)
            if step.after is not None and (step.after.adding or step.after.removing):
                self.moving.setdefault(key, OpenSpan(step.offset, batch.time_ms))
            else:
                self.moving.pop(key, None)
        for key, step in last.items():
            self._min_isr(step, key, batch.time_ms, changes)
        self._settings(batch, last, changes)
        return changes

    def _leader(self, step: PartitionStep, key: PartitionKey, now_ms: int, changes: SpanChanges) -> None:
        if step.after is not None and step.after.leader == NO_LEADER:
            self.leaderless.setdefault(key, OpenSpan(step.offset, now_ms))
        elif (begun := self.leaderless.pop(key, None)) is not None and step.after is not None:
            changes.led_again[key] = begun

    def _min_isr(self, step: PartitionStep, key: PartitionKey, now_ms: int, changes: SpanChanges) -> None:
        if step.after is not None and self.is_under_min(step.after):
            if key not in self.under_min:
                self.under_min[key] = OpenSpan(step.offset, now_ms)
                changes.under.append((step, self.min_isr(step.after)))
        elif (begun := self.under_min.pop(key, None)) is not None and step.after is not None:
            changes.restored.append((step, begun))

    def _settings(
        self, batch: BatchChanges, done: dict[PartitionKey, PartitionStep], changes: SpanChanges
    ) -> None:
        """Partitions checked again because min.insync.replicas itself changed."""
        for offset, resource, key, old, new in batch.configs:
            if key != MIN_INSYNC_REPLICAS or old == new:
                continue
            for info in self._affected(resource):
                partition_key = (info.topic_id, info.index)
                if partition_key in done:
                    continue
                name = self._feed.topic_name(info.topic_id) or uuid_to_text(info.topic_id)
                step = PartitionStep(
                    offset=offset, record=None, topic=name, index=info.index, before=info, after=info
                )
                self._min_isr(step, partition_key, batch.time_ms, changes)

    def _affected(self, resource: ConfigResource) -> Iterable[PartitionInfo]:
        if resource == ConfigResource(BROKER_RESOURCE, ""):
            return self._everything()
        if resource.resource_type != TOPIC_RESOURCE:
            return ()
        topic_id = self._feed.state.topics.by_name.get(resource.name)
        return () if topic_id is None else self._feed.partitions_of(topic_id)


def _by_place(spans: Spans) -> Spans:
    return dict(sorted(spans.items(), key=lambda item: item[1]))


def _min_isr(setting: str | None, info: PartitionInfo) -> int:
    return min(_wanted(setting), len(info.replicas))


def _wanted(setting: str | None) -> int:
    wanted = None if setting is None else whole_number(setting, MAX_INT)
    return 1 if wanted is None else wanted


def _is_short(setting: str | None, info: PartitionInfo) -> bool:
    """Under min ISR: by this value of the setting (1 if not set), capped at the number of replicas."""
    return len(info.isr) < _min_isr(setting, info)


def under_min_isr(image: MetadataImage) -> list[str]:
    """Paths of an image's partitions under min ISR, by topic name and index."""
    topics = image.topics
    keys = topics.keys_at(under_min_isr_rows(image))
    names = {topic_id: topics.by_id[topic_id].info.name for topic_id in {topic_id for topic_id, _ in keys}}
    return [f"topic/{name}/{index}" for name, index in sorted((names[at], index) for at, index in keys)]


def under_min_isr_rows(image: MetadataImage) -> RowArray:
    """Rows of an image's partitions under min ISR, ascending. Looks at every partition, in columns."""
    topics = image.topics
    default = (image.configs.get(ConfigResource(BROKER_RESOURCE, "")) or {}).get(MIN_INSYNC_REPLICAS)
    least = np.full(max(1, topics.next_slot), min(_wanted(default), INT32_MAX), dtype=np.int32)
    for resource, entries in image.configs.items_sorted():
        if resource.resource_type == TOPIC_RESOURCE and MIN_INSYNC_REPLICAS in entries:
            topic_id = topics.by_name.get(resource.name)
            if topic_id is not None:
                least[topics.by_id[topic_id].slot] = min(_wanted(entries[MIN_INSYNC_REPLICAS]), INT32_MAX)
    rows = [np.empty(0, dtype=np.int64)]
    for number, chunk in enumerate(topics.columns.chunks):
        data = chunk.data
        wanted = np.minimum(least[data[TOPIC]], data[N_REPLICAS])  # a free row has no replicas
        short = np.flatnonzero((data[N_ISR] < wanted) & (data[TOPIC] >= 0))
        rows.append(short + (number << CHUNK_SHIFT))
    return np.concatenate(rows)


def is_under_min_isr(image: MetadataImage, key: PartitionKey) -> bool:
    """Whether `under_min_isr` includes one partition of an image."""
    info, topic = image.topics.partition(*key), image.topics.topic(key[0])
    return info is not None and topic is not None and _is_short(min_isr_setting(image, topic.name), info)


def min_isr_setting(image: MetadataImage, topic: str) -> str | None:
    """min.insync.replicas of a topic: its own, else the brokers' default, else None."""
    for resource in (ConfigResource(TOPIC_RESOURCE, topic), ConfigResource(BROKER_RESOURCE, "")):
        setting = (image.configs.get(resource) or {}).get(MIN_INSYNC_REPLICAS)
        if setting is not None:
            return setting
    return None
