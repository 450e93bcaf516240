"""The invariants of an image as far as one step can have broken them: what a check of every batch asks.

Owns which partitions, topics, brokers and settings a step puts in question. The rules are `invariants`'s; a
full `check_image` now and then covers what no record can break (the counts of our own indexes).
Costs time in proportion to what changed; a broker that turned inactive puts its own partitions in question.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from .delta import MetadataDelta, diff
from .image import TOPIC_RESOURCE, BrokersImage, ConfigResource, MetadataImage, TopicsImage
from .image.columns import N_ISR, NO_RARE_FIELDS, Chunk, RowArray
from .invariants import (
    COLUMN_RULES,
    ERROR,
    MAX_VIOLATIONS,
    WARNING,
    ChunkView,
    Violation,
    broker_violations,
    feature_violations,
    partition_path,
    rare_row_violations,
)


def check_changes(
    before: MetadataImage, after: MetadataImage, *, limit: int = MAX_VIOLATIONS
) -> list[Violation]:
    """Broken rules of `after` that the step from `before` can have broken, at most `limit`.

    Rules that a partition or broker broke before and still breaks are found again only if it changed.
    """
    delta = diff(before, after)
    found: list[Violation] = []
    for part in (
        _topic_violations(delta),
        _partition_violations(delta),
        _registration_violations(delta),
        _config_violations(delta),
    ):
        for violation in part:
            if len(found) == limit:
                return found
            found.append(violation)
    return found


def _topic_violations(delta: MetadataDelta) -> Iterator[Violation]:
    """Partitions of new and grown topics are numbered without gaps."""
    grown = {topic_id for topic_id, _ in delta.partitions.added}
    grown |= {topic.topic_id for topic in delta.topics_added}
    yield from topic_violations(delta.new.topics, grown)


def topic_violations(topics: TopicsImage, topic_ids: Iterable[bytes]) -> Iterator[Violation]:
    """What is wrong with the names and the numbering of some topics; those that are gone are passed over."""
    for topic_id in sorted(topic_ids):
        entry = topics.by_id.get(topic_id)
        if entry is None:
            continue
        if topics.by_name.get(entry.info.name) != topic_id:
            path = f"topic/{entry.info.name}"
            yield Violation("topic-name-id-bijection", ERROR, path, "its id leads elsewhere")
        indexes = [first + at for first, count, _ in entry.runs for at in range(count)]
        if indexes != list(range(len(indexes))):
            path = f"topic/{entry.info.name}"
            text = f"indexes are not 0 to {len(indexes) - 1}"
            yield Violation("partition-indexes-dense", ERROR, path, text)


def _partition_violations(delta: MetadataDelta) -> Iterator[Violation]:
    image, topics = delta.new, delta.new.topics
    keys = [*delta.partitions.added, *delta.partitions.changed]
    rows = {row for key in keys if (row := topics.row_of(*key)) >= 0}
    for broker_id in _turned(delta.old.brokers, image.brokers):
        rows.update(topics.rows_with_replica(broker_id).tolist())
        rows.update(topics.rows_with_isr(broker_id).tolist())
        rows.update(topics.rows_led_by(broker_id).tolist())
    yield from row_violations(image, rows)


def row_violations(image: MetadataImage, rows: Iterable[int]) -> Iterator[Violation]:
    """What is wrong with the partitions in some live rows."""
    topics = image.topics
    chosen = np.array(sorted(rows), dtype=np.int64)
    if not len(chosen):
        return
    yield from _column_violations(image, chosen)
    columns = topics.columns
    without_isr = columns.gather(N_ISR, chosen) == 0
    for row, is_empty in zip(chosen.tolist(), without_isr.tolist(), strict=True):
        rare = columns.rare.get(row)
        if is_empty or rare is not None:
            yield from rare_row_violations(image, row, rare or NO_RARE_FIELDS, is_empty)


def _turned(old: BrokersImage, new: BrokersImage) -> set[int]:
    """Brokers that were active and are not, or are not registered any more."""
    if old is new:
        return set()
    return {broker_id for broker_id, was in old.items() if was.is_active and not new.is_active(broker_id)} | {
        broker_id for broker_id in old if broker_id not in new
    }


def _column_violations(image: MetadataImage, rows: RowArray) -> Iterator[Violation]:
    known = np.array(list(image.brokers), dtype=np.int64)
    active = np.array([at for at, broker in image.brokers.items() if broker.is_active], dtype=np.int64)
    for chunk, place, local in image.topics.columns.by_chunk(rows):
        part = Chunk(chunk.data[:, local], chunk.replica_width, chunk.isr_width)
        view = ChunkView(part, known, active)
        for rule, (severity, text, broken) in COLUMN_RULES.items():
            for at in np.flatnonzero(broken(view) & view.live).tolist():
                path = partition_path(image.topics, int(rows[place[at]]))
                yield Violation(rule, severity, path, text)


def _registration_violations(delta: MetadataDelta) -> Iterator[Violation]:
    if delta.brokers.is_empty and delta.features.is_empty:
        return
    yield from broker_violations(delta.new)
    yield from feature_violations(delta.new)


def _config_violations(delta: MetadataDelta) -> Iterator[Violation]:
    image = delta.new
    asked = {*delta.configs.added, *delta.configs.changed}
    asked |= {ConfigResource(TOPIC_RESOURCE, topic.name) for topic in delta.topics_removed}
    for resource in sorted(asked):
        is_topic = resource.resource_type == TOPIC_RESOURCE
        if is_topic and resource in image.configs and resource.name not in image.topics.by_name:
            path = f"config/topic/{resource.name}"
            yield Violation("config-of-topic", WARNING, path, "there is no such topic")
