"""Log lines about changes to brokers, features, topics and partitions, from comparing images.

Only parts that changed are compared: images share the others. Partitions are many: at level info one line
per second counts their changes, at level debug each has a line.
"""

from __future__ import annotations

import logging
from itertools import islice

import msgspec
import numpy as np

from metaquorum.metadata.delta import diff
from metaquorum.metadata.image import BrokersImage, MetadataImage, PartitionInfo, TopicsImage
from metaquorum.metadata.image.chunk import LEADER, LEADER_EPOCH, TOPIC, Chunk
from metaquorum.metadata.image.types import BrokerRegistration
from metaquorum.observability.logging import Source, log_metadata

SUMMARY_MS = 1_000
"""The interval between two counts of changed partitions."""

CHUNKS_PER_TICK = 64
"""Chunks of partitions that one step of the loop counts: about a millisecond."""

_log = logging.getLogger("metaquorum.metadata")


class _Position(msgspec.Struct, frozen=True):
    offset: int
    epoch: int
    source: Source


class MetadataLines:
    """Call `moved` and `tick` after every step. Changes at or below the first known high watermark are
    replayed; after a fetched snapshot, those at or below the high watermark of that time."""

    def __init__(self, image: MetadataImage) -> None:
        self._image = image
        self._live_from: int | None = None
        self._snapshots = 0
        self._is_live = False
        self._summary = _Summary(image.topics)

    def moved(self, image: MetadataImage, high_watermark: int, *, snapshots_loaded: int = 0) -> None:
        """Logs what is new in `image`. `snapshots_loaded`: number of snapshots fetched instead of the log."""
        if high_watermark >= 0 and (self._live_from is None or snapshots_loaded != self._snapshots):
            self._live_from = high_watermark
            self._snapshots = snapshots_loaded
        old, self._image = self._image, image
        if image is old:
            return
        position = self._position_of(image)
        if self._is_live != (position.source == "live"):
            self._turn(old, position)
        if image.brokers is not old.brokers:
            _log_brokers(old.brokers, image.brokers, position)
        if image.features is not old.features:
            for name in sorted({*old.features.finalized, *image.features.finalized}):
                level = image.features.level(name)
                if old.features.level(name) != level:
                    _log_line(f"{name} is at level {level}", position, feature=name, level_now=level)
        if image.topics is not old.topics:
            self._summary.moved(image.topics, position)
            if _log.isEnabledFor(logging.DEBUG):
                _log_partitions(old, image, position)

    def tick(self, now_ms: int) -> None:
        """Counts changes of partitions, a bounded part at a time."""
        self._summary.tick(now_ms)

    def _position_of(self, image: MetadataImage) -> _Position:
        provenance = image.provenance
        replayed = self._live_from is None or provenance.offset <= self._live_from
        return _Position(provenance.offset, provenance.epoch, "replayed" if replayed else "live")

    def _turn(self, old: MetadataImage, position: _Position) -> None:
        """Switches from replayed to live, or back for the replay of a snapshot."""
        self._is_live = position.source == "live"
        self._summary.forget(old.topics)
        if self._is_live:
            before = self._position_of(old)
            text = (
                f"caught up with the log: brokers {len(old.brokers)}, topics {len(old.topics)}, "
                f"partitions {old.topics.partition_count}"
            )
            _log_line(text, _Position(before.offset, before.epoch, "replayed"))


def _log_line(text: str, position: _Position, *, debug: bool = False, **fields: object) -> None:
    log_metadata(
        _log,
        text,
        offset=position.offset,
        epoch=position.epoch,
        source=position.source,
        debug=debug,
        **fields,
    )


# ---- brokers


def _log_brokers(old: BrokersImage, new: BrokersImage, position: _Position) -> None:
    for broker_id in sorted({*old, *new}):
        before, after = old.get(broker_id), new.get(broker_id)
        line = _broker_line(broker_id, before, after)
        known = after or before
        if line is not None and known is not None:
            _log_line(line, position, broker_id=broker_id, broker_epoch=known.epoch)


def _broker_line(
    broker_id: int, old: BrokerRegistration | None, new: BrokerRegistration | None
) -> str | None:
    """The line about one broker; None if it has not changed."""
    if old == new:
        return None
    if new is None:
        return f"broker {broker_id} was unregistered"
    if old is None or new.epoch != old.epoch:
        return f"broker {broker_id} registered with epoch {new.epoch}"
    if new.fenced != old.fenced:
        return f"broker {broker_id} is {'fenced' if new.fenced else 'unfenced'} (epoch {new.epoch})"
    if new.in_controlled_shutdown and not old.in_controlled_shutdown:
        return f"broker {broker_id} is in controlled shutdown"
    return f"broker {broker_id} changed its registration"


# ---- topics and partitions, each


def _log_partitions(old: MetadataImage, new: MetadataImage, position: _Position) -> None:
    delta = diff(old, new)
    for topic in delta.topics_added:
        _log_line(f"topic {topic.name} was created", position, debug=True, topic=topic.name)
    for topic in delta.topics_removed:
        _log_line(f"topic {topic.name} was deleted", position, debug=True, topic=topic.name)
    for key in (*delta.partitions.added, *delta.partitions.changed):
        before, after = old.topics.partition(*key), new.topics.partition(*key)
        named = new.topics.topic(key[0])
        if after is not None and named is not None:
            _log_partition(named.name, before, after, position)


def _log_partition(topic: str, old: PartitionInfo | None, new: PartitionInfo, position: _Position) -> None:
    leader = "nobody" if new.leader < 0 else str(new.leader)
    text = f"partition {topic}-{new.index} is led by {leader}"
    if old is not None and old.leader_epoch == new.leader_epoch:
        text = f"partition {topic}-{new.index} changed, its leader is {leader}"
    isr = ",".join(map(str, new.isr)) or "nobody"
    _log_line(
        f"{text}, in sync: {isr}",
        position,
        debug=True,
        topic=topic,
        partition=new.index,
        leader=new.leader,
        leader_epoch=new.leader_epoch,
        partition_epoch=new.partition_epoch,
    )


# ---- partitions, counted


class _Summary:
    """Counts the topics and partitions created and deleted, and the partitions with a new leader epoch, from
    the last count to the newest image. Chunks that both images share have not changed."""

    def __init__(self, topics: TopicsImage) -> None:
        self._counted = self._topics = topics
        self._position: _Position | None = None
        self._due_ms = 0
        self._count: _Count | None = None

    def forget(self, topics: TopicsImage) -> None:
        """Starts from `topics` without counting the changes up to it."""
        self._counted = self._topics = topics
        self._count = None

    def moved(self, topics: TopicsImage, position: _Position) -> None:
        self._topics, self._position = topics, position

    def tick(self, now_ms: int) -> None:
        if self._count is None:
            position = self._position
            if self._topics is self._counted or position is None or position.source != "live":
                return
            if now_ms < self._due_ms or not _log.isEnabledFor(logging.INFO):
                return
            self._due_ms = now_ms + SUMMARY_MS
            self._count = _Count(self._counted, self._topics, position)
            self._counted = self._topics
        if self._count.advance():
            self._count.log()
            self._count = None


class _Count:
    """A comparison of two images, in parts."""

    def __init__(self, old: TopicsImage, new: TopicsImage, position: _Position) -> None:
        self._position = position
        self._topics = len(new) - len(old)
        self._partitions = new.partition_count - old.partition_count
        self._led = self._leaderless = 0
        pairs = zip(old.columns.chunks, new.columns.chunks, strict=False)
        self._left = iter([(mine, theirs) for mine, theirs in pairs if mine is not theirs])

    def advance(self) -> bool:
        """Counts the next part; returns True if it was the last."""
        part = list(islice(self._left, CHUNKS_PER_TICK))
        for mine, theirs in part:
            led, leaderless = _new_leaders(mine, theirs)
            self._led += led
            self._leaderless += leaderless
        return len(part) < CHUNKS_PER_TICK

    def log(self) -> None:
        parts = []
        if self._topics:
            parts.append(f"topics {self._topics:+d}")
        if self._partitions:
            parts.append(f"partitions {self._partitions:+d}")
        if self._led or self._leaderless:
            parts.append(f"new leaders {self._led}, leaders lost {self._leaderless}")
        if parts:
            _log_line(
                ", ".join(parts),
                self._position,
                topics=self._topics,
                partitions=self._partitions,
                new_leaders=self._led,
                leaders_lost=self._leaderless,
            )


def _new_leaders(old: Chunk, new: Chunk) -> tuple[int, int]:
    """Partitions of one chunk whose leader epoch rose: (with a leader, without one)."""
    mine, theirs = old.data, new.data
    same = (mine[TOPIC] >= 0) & (mine[TOPIC] == theirs[TOPIC])
    moved = same & (theirs[LEADER_EPOCH] > mine[LEADER_EPOCH])
    leaderless = np.count_nonzero(moved & (theirs[LEADER] < 0))
    return int(np.count_nonzero(moved)) - int(leaderless), int(leaderless)
