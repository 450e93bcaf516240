"""The invariants of an image that one step can have broken, for checks of every batch.

Owns which partitions, topics, brokers and settings a step affects. Adds no rule and knows no records: the
rules are in `invariants`, and an occasional full `check_image` covers what no record can break (the counts of
our own indexes). Takes time in proportion to what changed; a broker that became inactive affects its own
partitions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from metaquorum.metadata.delta import MetadataDelta, diff
from metaquorum.metadata.image import TOPIC_RESOURCE, BrokersImage, ConfigResource, MetadataImage, TopicsImage
from metaquorum.metadata.image.chunk import (
    CHUNK_MASK,
    CHUNK_SHIFT,
    LEADER,
    LEADER_EPOCH,
    LISTS,
    N_ISR,
    N_REPLICAS,
    PADDING,
    PARTITION_EPOCH,
    Chunk,
    RowArray,
)
from metaquorum.metadata.image.columns import NO_RARE_FIELDS
from metaquorum.metadata.invariants import (
    COLUMN_RULES,
    ERROR,
    MAX_VIOLATIONS,
    WARNING,
    ChunkView,
    Violation,
    broker_violations,
    check_step,
    feature_violations,
    partition_path,
    rare_row_violations,
)

FEW_ROWS = 16
"""Up to this many rows are first looked at one by one."""


def check_batch(before: MetadataImage, after: MetadataImage) -> list[Violation]:
    """What `check_step` and `check_changes` find for one step; both compare the same two images."""
    if before is after:
        return check_step(before, after)
    delta = diff(before, after)
    found = check_step(before, after, delta=delta)
    return found if delta.is_empty else [*found, *check_changes(before, after, delta=delta)]


def check_changes(
    before: MetadataImage,
    after: MetadataImage,
    *,
    limit: int = MAX_VIOLATIONS,
    delta: MetadataDelta | None = None,
) -> list[Violation]:
    """Rules broken in `after` that the step from `before` can have broken, at most `limit`.

    A rule that a partition or broker already broke is reported again only if it changed. `delta` is the
    difference, if the caller already has it.
    """
    delta = diff(before, after) if delta is None else delta
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
    """New and grown topics whose partitions are not numbered without gaps."""
    grown = {topic_id for topic_id, _ in delta.partitions.added}
    grown |= {topic.topic_id for topic in delta.topics_added}
    yield from topic_violations(delta.new.topics, grown)


def topic_violations(topics: TopicsImage, topic_ids: Iterable[bytes]) -> Iterator[Violation]:
    """Violations in the names and the numbering of some topics; deleted topics are skipped."""
    for topic_id in sorted(topic_ids):
        entry = topics.by_id.get(topic_id)
        if entry is None:
            continue
        if topics.by_name.get(entry.info.name) != topic_id:
            path = f"topic/{entry.info.name}"
            yield Violation("topic-name-id-bijection", ERROR, path, "its id maps to another entry")
        indexes = [first + at for first, count, _ in entry.runs for at in range(count)]
        if indexes != list(range(len(indexes))):
            path = f"topic/{entry.info.name}"
            text = f"indexes are not 0 to {len(indexes) - 1}"
            yield Violation("partition-indexes-dense", ERROR, path, text)


def _partition_violations(delta: MetadataDelta) -> Iterator[Violation]:
    image, topics = delta.new, delta.new.topics
    keys = [*delta.partitions.added, *delta.partitions.changed]
    rows = {row for key in keys if (row := topics.row_of(*key)) >= 0}
    rows |= rows_about(topics, _turned(delta.old.brokers, image.brokers))
    yield from row_violations(image, rows)


def rows_about(topics: TopicsImage, broker_ids: Iterable[int]) -> set[int]:
    """Rows of the partitions that refer to one of the brokers."""
    rows: set[int] = set()
    for broker_id in broker_ids:
        rows.update(topics.rows_with_replica(broker_id).tolist())
        rows.update(topics.rows_with_isr(broker_id).tolist())
        rows.update(topics.rows_led_by(broker_id).tolist())
    return rows


def row_violations(image: MetadataImage, rows: Iterable[int]) -> Iterator[Violation]:
    """Violations of the partitions in some live rows."""
    columns = image.topics.columns
    listed = sorted(rows)
    if len(listed) <= FEW_ROWS:
        yield from _few_column_violations(image, listed)
        without_isr = [columns.chunks[at >> CHUNK_SHIFT].data[N_ISR, at & CHUNK_MASK] == 0 for at in listed]
    else:
        chosen = np.array(listed, dtype=np.int64)
        yield from _column_violations(image, chosen)
        without_isr = (columns.gather(N_ISR, chosen) == 0).tolist()
    for row, is_empty in zip(listed, without_isr, strict=True):
        rare = columns.rare.get(row)
        if is_empty or rare is not None:
            yield from rare_row_violations(image, row, rare or NO_RARE_FIELDS, is_empty)


def broken_column_rules(image: MetadataImage, row: int) -> list[str]:
    """Names of the COLUMN_RULES that a live row breaks, in their order. Equals the numpy check, whose calls
    cost more than a single row is worth."""
    chunk = image.topics.columns.chunks[row >> CHUNK_SHIFT]
    values = chunk.data[:, row & CHUNK_MASK].tolist()
    n_replicas, n_isr, leader = values[N_REPLICAS], values[N_ISR], values[LEADER]
    width = chunk.replica_width
    replicas = [at for at in values[LISTS : LISTS + width] if at != PADDING]
    isr = [at for at in values[chunk.isr_start :] if at != PADDING]
    directories = width - values[LISTS + width : LISTS + 2 * width].count(PADDING)
    holders, members, brokers = set(replicas), set(isr), image.brokers
    led = leader != PADDING
    broken = (
        ("partition-has-replicas", n_replicas == 0),
        ("replicas-distinct", len(holders) != len(replicas)),
        ("isr-distinct", len(members) != len(isr)),
        ("isr-within-replicas", not members <= holders),
        ("leader-in-isr", led and leader not in members),
        (
            "directories-parallel",
            len(replicas) != n_replicas or directories != n_replicas or len(isr) != n_isr,
        ),
        ("epochs-not-negative", values[LEADER_EPOCH] < 0 or values[PARTITION_EPOCH] < 0),
        ("leader-active", led and not brokers.is_active(leader)),
        ("isr-active", n_isr > 1 and not all(map(brokers.is_active, isr))),
        ("replicas-registered", not all(at in brokers for at in replicas)),
    )
    return [rule for rule, is_broken in broken if is_broken]


def _turned(old: BrokersImage, new: BrokersImage) -> set[int]:
    """Brokers that were active and are now inactive or unregistered."""
    if old is new:
        return set()
    return {broker_id for broker_id, was in old.items() if was.is_active and not new.is_active(broker_id)} | {
        broker_id for broker_id in old if broker_id not in new
    }


def _few_column_violations(image: MetadataImage, rows: list[int]) -> Iterator[Violation]:
    """The same as `_column_violations` for a few rows, in the same order: by chunk, rule and row."""
    order = list(COLUMN_RULES)
    found = [
        (row >> CHUNK_SHIFT, order.index(rule), row)
        for row in rows
        for rule in broken_column_rules(image, row)
    ]
    for _, number, row in sorted(found):
        severity, text, _ = COLUMN_RULES[order[number]]
        yield Violation(order[number], severity, partition_path(image.topics, row), text)


def _column_violations(image: MetadataImage, rows: RowArray) -> Iterator[Violation]:
    known, active = image.brokers.ids()
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
    yield from config_violations(image, asked)


def config_violations(image: MetadataImage, resources: Iterable[ConfigResource]) -> Iterator[Violation]:
    """Violations in the settings of some resources; those without settings are skipped."""
    for resource in sorted(resources):
        is_topic = resource.resource_type == TOPIC_RESOURCE
        if is_topic and resource in image.configs and resource.name not in image.topics.by_name:
            path = f"config/topic/{resource.name}"
            yield Violation("config-of-topic", WARNING, path, "there is no such topic")
