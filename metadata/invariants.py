"""What must hold in every image, and between an image and the next one.

Each has a name, a severity and a line in docs/invariants.md. An `error` can only come from a bug in the
program that wrote the log (or in this program); a `warning` is a state that a correct cluster passes through
or that an operator caused, such as a replica on an unregistered broker. The rules about partitions run in
numpy over the columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from metaquorum.metadata.delta import MetadataDelta, diff
from metaquorum.metadata.image import (
    METADATA_VERSION,
    TOPIC_RESOURCE,
    BrokersImage,
    ConfigResource,
    MetadataImage,
    TopicsImage,
)
from metaquorum.metadata.image.chunk import (
    CHUNK_MASK,
    CHUNK_SHIFT,
    INDEX,
    LEADER,
    LEADER_EPOCH,
    LISTS,
    N_ISR,
    N_REPLICAS,
    PADDING,
    PARTITION_EPOCH,
    TOPIC,
    Chunk,
    RowArray,
)
from metaquorum.metadata.image.columns import NO_RARE_FIELDS, RareFields
from metaquorum.metadata.image.compare import PartitionKey
from metaquorum.storage.uuids import uuid_to_text

ERROR = "error"
WARNING = "warning"
MAX_VIOLATIONS = 200
"""Maximum number of violations reported at once; more add nothing new."""
LAST_RESERVED_DIRECTORY = 99

Bools = npt.NDArray[np.bool_]


class Violation(msgspec.Struct, frozen=True):
    """One broken rule: its name, its severity, the path of the entity that breaks it, and what was found."""

    rule: str
    severity: str
    where: str
    text: str

    def __str__(self) -> str:
        return f"{self.severity} {self.rule} at {self.where}: {self.text}"


class ChunkView:
    """A chunk's columns by name, and which brokers are registered and active."""

    def __init__(
        self, chunk: Chunk, registered: npt.NDArray[np.int64], active: npt.NDArray[np.int64]
    ) -> None:
        data, width = chunk.data, chunk.replica_width
        self.live: Bools = data[TOPIC] >= 0
        self.leader = data[LEADER]
        self.leader_epoch = data[LEADER_EPOCH]
        self.partition_epoch = data[PARTITION_EPOCH]
        self.n_replicas = data[N_REPLICAS]
        self.n_isr = data[N_ISR]
        self.replicas = data[LISTS : LISTS + width]
        self.directories = data[LISTS + width : LISTS + 2 * width]
        self.isr = data[chunk.isr_start :]
        self.registered = registered
        self.active = active


def _repeats(lists: npt.NDArray[np.int32]) -> Bools:
    ordered = np.sort(lists, axis=0)
    found: Bools = ((ordered[1:] == ordered[:-1]) & (ordered[1:] != PADDING)).any(axis=0)
    return found


def _isr_outside_replicas(view: ChunkView) -> Bools:
    inside = (view.isr[:, None, :] == view.replicas[None, :, :]).any(axis=1) | (view.isr == PADDING)
    found: Bools = ~inside.all(axis=0)
    return found


def _leader_outside_isr(view: ChunkView) -> Bools:
    found: Bools = (view.leader != PADDING) & ~(view.isr == view.leader).any(axis=0)
    return found


def _padding_wrong(view: ChunkView) -> Bools:
    counts = (view.replicas != PADDING).sum(axis=0), (view.directories != PADDING).sum(axis=0)
    wrong: Bools = (counts[0] != view.n_replicas) | (counts[1] != view.n_replicas)
    wrong |= (view.isr != PADDING).sum(axis=0) != view.n_isr
    return wrong


def _leader_not_active(view: ChunkView) -> Bools:
    found: Bools = (view.leader != PADDING) & ~np.isin(view.leader, view.active)
    return found


def _isr_not_active(view: ChunkView) -> Bools:
    # The last member stays in the ISR when it is fenced: only it has the data.
    inactive = ~np.isin(view.isr, view.active) & (view.isr != PADDING)
    found: Bools = inactive.any(axis=0) & (view.n_isr > 1)
    return found


def _replica_not_registered(view: ChunkView) -> Bools:
    missing: Bools = (~np.isin(view.replicas, view.registered) & (view.replicas != PADDING)).any(axis=0)
    return missing


COLUMN_RULES: dict[str, tuple[str, str, Callable[[ChunkView], Bools]]] = {
    "partition-has-replicas": (ERROR, "it has no replica", lambda view: view.n_replicas == 0),
    "replicas-distinct": (ERROR, "a broker is listed twice", lambda view: _repeats(view.replicas)),
    "isr-distinct": (ERROR, "the ISR lists a broker twice", lambda view: _repeats(view.isr)),
    "isr-within-replicas": (ERROR, "the ISR names a broker that holds no replica", _isr_outside_replicas),
    "leader-in-isr": (ERROR, "the leader is not in the ISR", _leader_outside_isr),
    "directories-parallel": (ERROR, "lists and their lengths do not match", _padding_wrong),
    "epochs-not-negative": (
        ERROR,
        "an epoch is negative",
        lambda view: (view.leader_epoch < 0) | (view.partition_epoch < 0),
    ),
    "leader-active": (WARNING, "the leader is fenced, shutting down or not registered", _leader_not_active),
    "isr-active": (WARNING, "the ISR names a broker that is fenced or shutting down", _isr_not_active),
    "replicas-registered": (
        WARNING,
        "a replica is on a broker that is not registered",
        _replica_not_registered,
    ),
}


def check_image(image: MetadataImage, *, limit: int = MAX_VIOLATIONS) -> list[Violation]:
    """Every broken rule of one image, at most `limit`; empty for a sound image."""
    violations: list[Violation] = []
    for part in (
        _index_violations,
        _column_violations,
        _rare_violations,
        broker_violations,
        _other_violations,
    ):
        for violation in part(image):
            if len(violations) == limit:
                return violations
            violations.append(violation)
    return violations


def check_step(
    before: MetadataImage,
    after: MetadataImage,
    *,
    limit: int = MAX_VIOLATIONS,
    delta: MetadataDelta | None = None,
) -> list[Violation]:
    """Every broken rule between an image and a later one of the same log, at most `limit`. `delta` is their
    difference, if the caller already has it."""
    violations: list[Violation] = []
    for part in (
        _progress_violations(before, after),
        _partition_step_violations(diff(before, after) if delta is None else delta),
    ):
        for violation in part:
            if len(violations) == limit:
                return violations
            violations.append(violation)
    return violations


def partition_path(topics: TopicsImage, row: int) -> str:
    """`topic/orders/7` for a live row."""
    topic_id, index = topics.key_at(row)
    return _key_path(topics, topic_id, index)


def _key_path(topics: TopicsImage, topic_id: bytes, index: int) -> str:
    topic = topics.topic(topic_id)
    return f"topic/{uuid_to_text(topic_id) if topic is None else topic.name}/{index}"


def _index_violations(image: MetadataImage) -> Iterator[Violation]:
    topics = image.topics
    if not len(topics.by_id) == len(topics.by_name) == len(topics.by_slot):
        yield Violation("topic-name-id-bijection", ERROR, "topic", "ids, names and slots differ in number")
    rows = 0
    for name, topic_id in topics.by_name.items_sorted():
        entry = topics.by_id.get(topic_id)
        if entry is None or entry.info.name != name or topics.by_slot.get(entry.slot) != topic_id:
            yield Violation("topic-name-id-bijection", ERROR, f"topic/{name}", "its id maps to another entry")
            continue
        rows += entry.partition_count
        own = entry.rows()
        slots, indexes = topics.columns.gather(TOPIC, own), topics.columns.gather(INDEX, own)
        expected = [first + at for first, count, _ in entry.runs for at in range(count)]
        if (slots != entry.slot).any() or indexes.tolist() != expected:
            yield Violation("rows-match-index", ERROR, f"topic/{name}", "a row holds another partition")
        if expected != list(range(len(expected))):
            yield Violation(
                "partition-indexes-dense", ERROR, f"topic/{name}", f"indexes are not 0 to {len(expected) - 1}"
            )
    if rows != topics.partition_count or rows != len(topics.columns.live_rows()):
        yield Violation(
            "rows-match-index", ERROR, "topic", f"{rows} partitions, {topics.partition_count} counted"
        )
    yield from _count_violations(topics)


def _count_violations(topics: TopicsImage) -> Iterator[Violation]:
    """Compares the index that missing broker ids come from (S0.16) with a scan."""
    scanned: dict[int, int] = {}
    for chunk in topics.columns.chunks:
        replicas = chunk.data[LISTS : LISTS + chunk.replica_width, chunk.data[TOPIC] >= 0]
        ids, amounts = np.unique(replicas[replicas != PADDING], return_counts=True)
        for broker_id, amount in zip(ids.tolist(), amounts.tolist(), strict=True):
            scanned[broker_id] = scanned.get(broker_id, 0) + amount
    counted = topics.replica_counts()
    for broker_id in sorted({*scanned, *counted}):
        if scanned.get(broker_id, 0) != counted.get(broker_id, 0):
            text = f"it holds {scanned.get(broker_id, 0)} replicas, {counted.get(broker_id, 0)} are counted"
            yield Violation("replica-counts", ERROR, f"broker/{broker_id}", text)


def _column_violations(image: MetadataImage) -> Iterator[Violation]:
    known, active = image.brokers.ids()
    for number, chunk in enumerate(image.topics.columns.chunks):
        view = ChunkView(chunk, known, active)
        for rule, (severity, text, broken) in COLUMN_RULES.items():
            for local in np.flatnonzero(broken(view) & view.live).tolist():
                row = (number << CHUNK_SHIFT) + local
                yield Violation(rule, severity, partition_path(image.topics, row), text)


def _rare_violations(image: MetadataImage) -> Iterator[Violation]:
    columns = image.topics.columns
    without_isr = set(columns.rows_where(N_ISR, 0).tolist())
    for row in sorted(without_isr):
        yield from rare_row_violations(image, row, columns.rare.get(row) or NO_RARE_FIELDS, True)
    for row, rare in columns.rare.items_sorted():
        if row not in without_isr:
            yield from rare_row_violations(image, row, rare, False)


def rare_row_violations(
    image: MetadataImage, row: int, rare: RareFields, isr_is_empty: bool
) -> Iterator[Violation]:
    """Violations in those lists of one partition that are empty for nearly every partition."""
    path = partition_path(image.topics, row)
    if isr_is_empty and not rare.elr and not rare.last_known_elr:
        yield Violation("isr-not-empty", ERROR, path, "the ISR is empty and no eligible leader is kept")
    if rare == NO_RARE_FIELDS:
        return
    partition = image.topics.at(row)
    if not {*rare.adding, *rare.removing} <= set(partition.replicas):
        yield Violation("reassignment-within-replicas", ERROR, path, "adding or removing names no replica")
    if set(rare.adding) & set(rare.removing):
        yield Violation("reassignment-within-replicas", ERROR, path, "a replica is both added and removed")
    if not set(rare.elr) <= set(partition.replicas) or set(rare.elr) & set(partition.isr):
        yield Violation(
            "elr-outside-isr", ERROR, path, "an eligible leader is in the ISR or holds no replica"
        )


def broker_violations(image: MetadataImage) -> Iterator[Violation]:
    """Violations in registrations and their log directories."""
    owners: dict[bytes, int] = {}
    for broker_id, broker in image.brokers.items():
        path = f"broker/{broker_id}"
        if broker.broker_id != broker_id or broker_id < 0 or broker.epoch < 0:
            yield Violation(
                "broker-registered-as-itself", ERROR, path, f"id {broker.broker_id} epoch {broker.epoch}"
            )
        if len(set(broker.directories)) != len(broker.directories):
            yield Violation("directories-distinct", ERROR, path, "a log directory is listed twice")
        for directory in broker.directories:
            if int.from_bytes(directory, "big") <= LAST_RESERVED_DIRECTORY:
                yield Violation("directories-not-reserved", ERROR, path, "a log directory has a reserved id")
            if owners.setdefault(directory, broker_id) != broker_id:
                yield Violation(
                    "directories-distinct", ERROR, path, f"broker {owners[directory]} has the same directory"
                )


def _other_violations(image: MetadataImage) -> Iterator[Violation]:
    for resource, _ in image.configs.items_sorted():
        if resource.resource_type == TOPIC_RESOURCE and resource.name not in image.topics.by_name:
            yield Violation(
                "config-of-topic", WARNING, f"config/topic/{resource.name}", "there is no such topic"
            )
    yield from feature_violations(image)


def feature_violations(image: MetadataImage) -> Iterator[Violation]:
    """Brokers that do not support the metadata.version in force."""
    level = image.features.metadata_version
    for broker_id, broker in image.brokers.items():
        for feature in broker.features:
            if feature.name == METADATA_VERSION and not (
                feature.min_supported_version <= level <= feature.max_supported_version
            ):
                yield Violation(
                    "feature-supported",
                    WARNING,
                    f"broker/{broker_id}",
                    f"metadata.version {level} is outside its range",
                )


def _progress_violations(before: MetadataImage, after: MetadataImage) -> Iterator[Violation]:
    old, new = before.provenance, after.provenance
    if new.offset < old.offset or new.epoch < old.epoch:
        yield Violation("provenance-grows", ERROR, "provenance", f"{old} -> {new}")
    if after.producer_ids.next_producer_id < before.producer_ids.next_producer_id:
        yield Violation("producer-ids-grow", ERROR, "producerIds", "the next producer id decreased")
    if after.features.metadata_version < before.features.metadata_version:
        yield Violation("metadata-version-grows", WARNING, f"feature/{METADATA_VERSION}", "it was downgraded")
    if before.brokers is after.brokers:
        return
    for broker_id, broker in after.brokers.items():
        earlier = before.brokers.get(broker_id)
        if earlier is None or earlier is broker:
            continue
        if broker.epoch < earlier.epoch:
            yield Violation(
                "broker-epoch-grows", ERROR, f"broker/{broker_id}", f"epoch {earlier.epoch} -> {broker.epoch}"
            )
        elif broker.epoch == earlier.epoch and broker.incarnation_id != earlier.incarnation_id:
            yield Violation(
                "incarnation-has-own-epoch",
                ERROR,
                f"broker/{broker_id}",
                f"two incarnations share {broker.epoch}",
            )


def _partition_step_violations(delta: MetadataDelta) -> Iterator[Violation]:
    before, after, changes = delta.old, delta.new, delta.partitions
    for topic_id, index in changes.removed:
        if after.topics.topic(topic_id) is not None:
            path = _key_path(after.topics, topic_id, index)
            yield Violation("partitions-stay", ERROR, path, "it was removed although its topic exists")
    for topic_id, index in _doubtful_steps(before.topics, after.topics, changes.changed):
        old, new = before.topics.partition(topic_id, index), after.topics.partition(topic_id, index)
        if old is None or new is None:
            continue
        path = _key_path(after.topics, topic_id, index)
        if new.partition_epoch <= old.partition_epoch:
            text = f"partition epoch {old.partition_epoch} -> {new.partition_epoch} on a change"
            yield Violation("partition-epoch-grows", ERROR, path, text)
        if new.leader_epoch < old.leader_epoch or (
            new.leader != old.leader and new.leader_epoch == old.leader_epoch
        ):
            text = (
                f"leader {old.leader} -> {new.leader}, leader epoch {old.leader_epoch} -> {new.leader_epoch}"
            )
            yield Violation("leader-epoch-grows", ERROR, path, text)


def _doubtful_steps(
    before: TopicsImage, after: TopicsImage, keys: Sequence[PartitionKey]
) -> Sequence[PartitionKey]:
    """Of many changed partitions, those whose epochs do not grow as they should."""
    if len(keys) <= FEW_ROWS:
        return keys
    found = [(before.row_of(*key), after.row_of(*key)) for key in keys]
    both = np.array([at for at, rows in enumerate(found) if min(rows) >= 0], dtype=np.int64)
    old_rows, new_rows = np.array(found, dtype=np.int64)[both].T
    old, new = (
        [topics.columns.gather(column, rows) for column in (PARTITION_EPOCH, LEADER_EPOCH, LEADER)]
        for topics, rows in ((before, old_rows), (after, new_rows))
    )
    doubtful = (new[0] <= old[0]) | (new[1] < old[1]) | ((new[2] != old[2]) & (new[1] == old[1]))
    return [keys[at] for at in both[doubtful].tolist()]


# The invariants of an image that one step can have broken, for checks of every batch.
# Adds no rule and knows no records: the rules are in `invariants`, and an occasional full `check_image`
# covers what no record can break (the counts of our own indexes). Takes time in proportion to what
# changed; a broker that became inactive affects its own partitions.

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
    delta: MetadataDelta | None = None,
) -> list[Violation]:
    """Rules broken in `after` that the step from `before` can have broken, at most MAX_VIOLATIONS.

    A rule that a partition or broker already broke is reported again only if it changed. `delta` is the
    difference, if the caller already has it.
    """
    delta = diff(before, after) if delta is None else delta
    violations: list[Violation] = []
    for part in (
        _topic_violations(delta),
        _partition_violations(delta),
        _registration_violations(delta),
        _config_violations(delta),
    ):
        for violation in part:
            if len(violations) == MAX_VIOLATIONS:
                return violations
            violations.append(violation)
    return violations


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
        yield from _columns_of_rows_violations(image, chosen)
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
    broken = [
        (row >> CHUNK_SHIFT, order.index(rule), row)
        for row in rows
        for rule in broken_column_rules(image, row)
    ]
    for _, number, row in sorted(broken):
        severity, text, _ = COLUMN_RULES[order[number]]
        yield Violation(order[number], severity, partition_path(image.topics, row), text)


def _columns_of_rows_violations(image: MetadataImage, rows: RowArray) -> Iterator[Violation]:
    known, active = image.brokers.ids()
    for chunk, positions, local in image.topics.columns.by_chunk(rows):
        part = Chunk(chunk.data[:, local], chunk.replica_width, chunk.isr_width)
        view = ChunkView(part, known, active)
        for rule, (severity, text, broken) in COLUMN_RULES.items():
            for at in np.flatnonzero(broken(view) & view.live).tolist():
                path = partition_path(image.topics, int(rows[positions[at]]))
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
