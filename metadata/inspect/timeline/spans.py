"""Which partitions are without a leader or under min ISR, and since when. Knows no texts and no files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from metaquorum.metadata.image import BROKER_RESOURCE, TOPIC_RESOURCE, ImageBuilder, MetadataImage
from metaquorum.metadata.image.chunk import N_ISR, IntArray
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

INT32_MAX = 2**31 - 1


@dataclass(slots=True, kw_only=True)
class SpanChanges:
    """What one batch began and ended. An ended span is (step, when it began); of those `at_least` it is only
    known that they went on then."""

    time_ms: int
    led_again: dict[PartitionKey, Place] = field(default_factory=dict)
    under: list[tuple[PartitionStep, int]] = field(default_factory=list)
    restored: list[tuple[PartitionStep, Place]] = field(default_factory=list)
    at_least: set[PartitionKey] = field(default_factory=set)


class PartitionSpans:
    """Keeps the spans that are open. `leaderless` and `under_min` map partitions to where they began."""

    def __init__(self, feed: ChangeFeed, image: MetadataImage | None) -> None:
        self._feed = feed
        self.leaderless: dict[PartitionKey, Place] = {}
        self.under_min: dict[PartitionKey, Place] = {}
        self._settings_of: dict[str, str | None] = {}
        self._unsure: set[PartitionKey] = set()
        self._noted: tuple[dict[PartitionKey, Place], dict[PartitionKey, Place], set[PartitionKey]]
        self._noted = {}, {}, set()
        if image is not None and feed.is_known:
            self.learn(image)

    def learn(self, image: MetadataImage, begun: Mapping[PartitionKey, Place] | None = None) -> None:
        """A snapshot says which spans are open; `begun` are places where some of them began."""
        self.leaderless |= begun or {}
        known = {*self.leaderless, *self.under_min}
        self._rebuild((image.provenance.offset, image.provenance.timestamp_ms))
        self._unsure = {*self.leaderless, *self.under_min} - known

    def is_unsure(self, key: PartitionKey) -> bool:
        """Whether a span may have begun before the place that is known."""
        return key in self._unsure

    def path(self, key: PartitionKey) -> str:
        return f"topic/{self._feed.topic_name(key[0]) or key[0].hex()}/{key[1]}"

    def name(self, key: PartitionKey) -> str:
        return f"{self._feed.topic_name(key[0]) or key[0].hex()}-{key[1]}"

    def note(self) -> None:
        """A transaction begins, which may be aborted."""
        self._noted = (dict(self.leaderless), dict(self.under_min), set(self._unsure))

    def take_back(self, now: Place) -> None:
        """After a transaction that had no effect: spans that were open where it began went on."""
        leaderless, under_min, unsure = self._noted
        self.leaderless |= leaderless
        self.under_min |= under_min
        self._rebuild(now)
        self._unsure = unsure & {*self.leaderless, *self.under_min}

    def _rebuild(self, now: Place) -> None:
        """Finds the open spans in the state; those that were open began where they did, others `now`."""
        old, old_min = self.leaderless, self.under_min
        leaderless: dict[PartitionKey, Place] = {}
        under_min: dict[PartitionKey, Place] = {}
        for info in self._everything():
            key = (info.topic_id, info.index)
            if info.leader == NO_LEADER:
                leaderless[key] = old.get(key, now)
            if self.is_under_min(info):
                under_min[key] = old_min.get(key, now)
        self.leaderless, self.under_min = _by_place(leaderless), _by_place(under_min)

    def _everything(self) -> Iterable[PartitionInfo]:
        topics = self._feed.state.topics.freeze()
        for topic in topics.all():
            yield from topics.partitions_of(topic.topic_id)

    def min_isr(self, info: PartitionInfo) -> int:
        """The partition's min.insync.replicas as the log says it (1 where it says nothing), and never more
        than its replicas, as Kafka counts it."""
        name = self._feed.topic_name(info.topic_id)
        return _min_isr(None if name is None else self._setting(name), info)

    def least_isr(self, slots: IntArray) -> IntArray:
        """min.insync.replicas of topics, by their numbers in the columns."""
        topics = self._feed.state.topics
        found, places = np.unique(slots, return_inverse=True)
        infos = [topics.by_id[topics.by_slot[slot]].info for slot in found.tolist()]
        wanted = [min(_wanted(self._setting(info.name)), INT32_MAX) for info in infos]
        return np.array(wanted, dtype=np.int32)[places]

    def _setting(self, topic: str) -> str | None:
        if topic not in self._settings_of:
            self._settings_of[topic] = self._feed.topic_config(topic, MIN_INSYNC_REPLICAS)
        return self._settings_of[topic]

    def forget_settings(self) -> None:
        """Whatever may have changed a setting or a topic's name came."""
        self._settings_of.clear()

    def all_fine(self, builder: ImageBuilder, topic_ids: list[bytes]) -> bool:
        """Whether all partitions of these topics are led and have their minimum ISR."""
        self.forget_settings()
        settings = [self._setting(builder.topics.by_id[topic_id].info.name) for topic_id in topic_ids]
        self.forget_settings()  # the caller may take back what it just applied
        return all_led_and_in_sync(builder, topic_ids, [_wanted(setting) for setting in settings])

    def is_under_min(self, info: PartitionInfo) -> bool:
        return len(info.isr) < self.min_isr(info)

    def batch(self, batch: BatchChanges) -> SpanChanges:
        """Brings the spans up to date with one batch."""
        found = SpanChanges(time_ms=batch.time_ms)
        last: dict[PartitionKey, PartitionStep] = {}
        for step in batch.partitions:
            key = step.key
            last[key] = step
            self._leader(step, key, batch.time_ms, found)
        for key, step in last.items():
            self._min_isr(step, key, batch.time_ms, found)
        self._settings(batch, last, found)
        return found

    def _leader(self, step: PartitionStep, key: PartitionKey, now_ms: int, found: SpanChanges) -> None:
        if step.after is not None and step.after.leader == NO_LEADER:
            self.leaderless.setdefault(key, (step.offset, now_ms))
        elif (begun := self.leaderless.pop(key, None)) is not None and step.after is not None:
            found.led_again[key] = begun
            self._end(key, found)

    def _min_isr(self, step: PartitionStep, key: PartitionKey, now_ms: int, found: SpanChanges) -> None:
        if step.after is not None and self.is_under_min(step.after):
            if key not in self.under_min:
                self.under_min[key] = (step.offset, now_ms)
                found.under.append((step, self.min_isr(step.after)))
        elif (begun := self.under_min.pop(key, None)) is not None and step.after is not None:
            found.restored.append((step, begun))
            self._end(key, found)

    def _end(self, key: PartitionKey, found: SpanChanges) -> None:
        if key in self._unsure:
            found.at_least.add(key)
            if key not in self.leaderless and key not in self.under_min:
                self._unsure.discard(key)

    def _settings(
        self, batch: BatchChanges, done: dict[PartitionKey, PartitionStep], found: SpanChanges
    ) -> None:
        """Partitions that are judged again because min.insync.replicas itself changed."""
        for offset, resource, key, old, new in batch.configs:
            if key != MIN_INSYNC_REPLICAS or old == new:
                continue
            for info in self._concerned(resource):
                place = (info.topic_id, info.index)
                if place in done:
                    continue
                name = self._feed.topic_name(info.topic_id) or info.topic_id.hex()
                step = PartitionStep(
                    offset=offset, record=None, topic=name, index=info.index, before=info, after=info
                )
                self._min_isr(step, place, batch.time_ms, found)

    def _concerned(self, resource: ConfigResource) -> Iterable[PartitionInfo]:
        if resource == ConfigResource(BROKER_RESOURCE, ""):
            return self._everything()
        if resource.resource_type != TOPIC_RESOURCE:
            return ()
        topic_id = self._feed.state.topics.by_name.get(resource.name)
        return () if topic_id is None else self._feed.partitions_of(topic_id)


def _by_place(spans: dict[PartitionKey, Place]) -> dict[PartitionKey, Place]:
    return dict(sorted(spans.items(), key=lambda item: item[1]))


def _min_isr(setting: str | None, info: PartitionInfo) -> int:
    return min(_wanted(setting), len(info.replicas))


def _wanted(setting: str | None) -> int:
    return int(setting) if setting is not None and setting.isdigit() else 1


def _is_short(setting: str | None, info: PartitionInfo) -> bool:
    """Under min ISR: by this value of the setting, 1 without one, and at most the number of replicas."""
    return len(info.isr) < _min_isr(setting, info)


def under_min_isr(image: MetadataImage) -> list[str]:
    """Paths of an image's partitions under min ISR. Costs time in proportion to the topics with the setting,
    and to all partitions if the brokers' default is above 1."""
    default = (image.configs.get(ConfigResource(BROKER_RESOURCE, "")) or {}).get(MIN_INSYNC_REPLICAS)
    settings: dict[str, str | None]
    if _wanted(default) == 1:  # short are only those without any ISR
        ids = {topic_id for topic_id, _ in image.topics.keys_at(image.topics.columns.rows_where(N_ISR, 0))}
        settings = {image.topics.by_id[topic_id].info.name: default for topic_id in ids}
    else:
        settings = {topic.name: default for topic in image.topics.all()}
    for resource, entries in image.configs.items_sorted():
        if resource.resource_type == TOPIC_RESOURCE and MIN_INSYNC_REPLICAS in entries:
            settings[resource.name] = entries[MIN_INSYNC_REPLICAS]
    found = []
    for name, setting in sorted(settings.items()):
        topic = image.topics.topic_named(name)
        partitions = [] if topic is None else image.topics.partitions_of(topic.topic_id)
        found += [f"topic/{name}/{at.index}" for at in partitions if _is_short(setting, at)]
    return found


def is_under_min_isr(image: MetadataImage, key: PartitionKey) -> bool:
    """Whether `under_min_isr` has one partition of an image."""
    info, topic = image.topics.partition(*key), image.topics.topic(key[0])
    if info is None or topic is None:
        return False
    for resource in (ConfigResource(TOPIC_RESOURCE, topic.name), ConfigResource(BROKER_RESOURCE, "")):
        setting = (image.configs.get(resource) or {}).get(MIN_INSYNC_REPLICAS)
        if setting is not None:
            return _is_short(setting, info)
    return _is_short(None, info)
