"""How partitions change when brokers and directories come and go, in bounded batches (S4.3-S4.6)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from metaquorum.controller.partitions import column_elections as in_columns
from metaquorum.controller.partitions.column_elections import Decided
from metaquorum.controller.partitions.partition_change import Election, MayLead, Rules, Target, build_change
from metaquorum.controller.result import Slice
from metaquorum.metadata.columnar.encode import Bulk, in_pieces
from metaquorum.metadata.image import NO_LEADER, MetadataImage, PartitionInfo
from metaquorum.metadata.image.chunk import (
    CHUNK_SHIFT,
    FLAGS,
    LEADER,
    LISTS,
    RARE_FLAG,
    TOPIC,
    Chunk,
    RowArray,
)
from metaquorum.metadata.image.topics import TopicsImage
from metaquorum.metadata.records.types import PartitionChangeRecord, Record

__all__ = [
    "MayLead",
    "election_slice",
    "eligible_anywhere",
    "failed_directories_slice",
    "forgetting_slice",
    "leaders_of",
    "leads_any",
    "preferred_slice",
    "removal_slice",
    "rows_without_preferred_leader",
    "with_broker",
    "without_broker",
]


def without_broker(
    partition: PartitionInfo, broker_id: int, rules: Rules, *, unclean: bool = False
) -> PartitionChangeRecord | None:
    """Takes `broker_id` out of leadership and ISR; None if nothing changes. `unclean`: its data may be lost,
    so it is no eligible leader either (KIP-966).

    The last in-sync replica stays in the ISR, leaderless: only it has all the data (S4.5).
    """
    if broker_id != partition.leader and broker_id not in {*partition.isr, *partition.elr}:
        return None
    isr = tuple([replica for replica in partition.isr if replica != broker_id])
    lost = frozenset([broker_id]) if unclean else frozenset[int]()
    return build_change(partition, Target(isr=isr, unclean_shutdown=lost), rules)


def _without(rules: Rules, broker_id: int) -> Rules:
    may_lead = rules.may_lead
    return replace(rules, may_lead=lambda replica: replica != broker_id and may_lead(replica))


def with_broker(rules: Rules, broker_id: int) -> Rules:
    """The same rules, but the broker may lead too."""
    may_lead = rules.may_lead
    return replace(rules, may_lead=lambda replica: replica == broker_id or may_lead(replica))


def leaders_of(image: MetadataImage) -> frozenset[int]:
    """The brokers that lead a partition."""
    found = [np.unique(chunk.data[LEADER, chunk.data[TOPIC] >= 0]) for chunk in image.topics.columns.chunks]
    return frozenset(np.unique(np.concatenate(found)).tolist()) - {NO_LEADER} if found else frozenset()


def leads_any(image: MetadataImage, broker_id: int) -> bool:
    """Whether the broker leads a partition."""
    return bool(image.topics.rows_led_by(broker_id).size)


def removal_slice(
    image: MetadataImage,
    broker_id: int,
    rules: Rules,
    at_most: int,
    *,
    first: Record | None = None,
    final: Record | None = None,
    scan: Scan | None = None,
    unclean: bool = False,
) -> Slice:
    """The next batch that takes `broker_id` out of partitions, with `first` before it; the last batch ends
    with `final`. `unclean`: out of the eligible leaders too; `scan` has to look for those.

    Computed from the current image, so it is valid whatever happened between the batches; the last one covers
    every partition that still names the broker. `scan`, if the work keeps one, knows where the earlier slices
    found nothing left.
    """
    topics = image.topics
    without = _without(rules, broker_id)
    return change_slice(
        image,
        Scan(counting_on(broker_id) if unclean else naming(broker_id)) if scan is None else scan,
        at_most,
        lambda row: without_broker(topics.at(row), broker_id, without, unclean=unclean),
        lambda rows: in_columns.without_broker(image, rows, broker_id, without),
        head=() if first is None else (first,),
        tail=() if final is None else (final,),
    )


def failed_directories_slice(
    image: MetadataImage,
    broker_id: int,
    directories: Sequence[bytes],
    rules: Rules,
    at_most: int,
    *,
    final: Record,
    scan: Scan | None = None,
) -> Slice:
    """The next batch that takes the broker's replicas in dead directories out of leadership and ISR; the
    last one ends with `final`, the registration without these directories (S3.15)."""
    topics = image.topics
    dead = frozenset(directories)
    # Their replicas are in dead directories, so for all of them the broker may not lead.
    failing = _without(replace(rules, failing=rules.failing | dead), broker_id)
    return change_slice(
        image,
        Scan(lying_in(image, broker_id, directories)) if scan is None else scan,
        at_most,
        lambda row: without_broker(topics.at(row), broker_id, failing),
        lambda rows: in_columns.without_broker(image, rows, broker_id, failing),
        tail=(final,),
    )


def election_slice(
    image: MetadataImage,
    broker_id: int | None,
    rules: Rules,
    at_most: int,
    *,
    first: Record | None = None,
) -> Slice:
    """The next batch of leaders for leaderless partitions, with `first` before them.

    Only those with a replica on `broker_id`; None: all (a new active controller looks once, S4.13).
    """
    topics = image.topics
    return change_slice(
        image,
        Scan(leaderless(broker_id)),
        at_most,
        lambda row: build_change(topics.at(row), Target(), rules),
        lambda rows: in_columns.with_leader(image, rows, rules),
        head=() if first is None else (first,),
    )


def eligible_anywhere(image: MetadataImage, broker_id: int | None = None) -> bool:
    """Whether a partition keeps the broker, or (None) any broker, as eligible or as its last leader."""
    for _, fields in image.topics.columns.rare.items_sorted():
        if broker_id in fields.elr if broker_id is not None else fields.elr or fields.last_known_elr:
            return True
    return False


def forgetting_slice(image: MetadataImage, rules: Rules, at_most: int, *, scan: Scan | None = None) -> Slice:
    """The next batch of what remains to do when eligible leader replicas were switched off: partitions that
    have some forget them, and one without an ISR gets one back (`partition_change`)."""
    topics = image.topics

    def one_by_one(row: int) -> PartitionChangeRecord | None:
        partition = topics.at(row)
        if not partition.elr and not partition.last_known_elr:
            return None
        return build_change(partition, Target(), rules)

    return change_slice(image, Scan(listing_rare) if scan is None else scan, at_most, one_by_one, None)


def rows_without_preferred_leader(topics: TopicsImage) -> RowArray:
    """Rows of partitions that are not led by their first replica, including leaderless ones; ascending."""
    rows = []
    for number, chunk in enumerate(topics.columns.chunks):
        data = chunk.data
        local = np.flatnonzero((data[TOPIC] >= 0) & (data[LEADER] != data[LISTS]))
        if local.size:
            rows.append(local.astype(np.int64) + (number << CHUNK_SHIFT))
    return np.concatenate(rows) if rows else np.empty(0, dtype=np.int64)


def preferred_slice(image: MetadataImage, rules: Rules, at_most: int) -> Slice:
    """The next batch that returns partitions to their preferred leaders, where these may lead."""
    topics = image.topics
    return change_slice(
        image,
        Scan(not_preferred),
        at_most,
        lambda row: build_change(topics.at(row), Target(), rules, Election.PREFERRED),
        lambda rows: in_columns.with_leader(image, rows, rules, preferred=True),
    )


# Bounded batches of partition changes: columns decide what they can, the rest is decided one by one.
# Each slice is computed from the current image and is valid alone.

MIN_ROWS = 24
"""Fewer rows are faster one by one."""

OneByOne = Callable[[int], PartitionChangeRecord | None]
InColumns = Callable[[RowArray], Decided]


def change_slice(
    image: MetadataImage,
    scan: Scan,
    at_most: int,
    one_by_one: OneByOne,
    in_columns: InColumns | None,
    *,
    head: Sequence[Record] = (),
    tail: Sequence[Record] = (),
) -> Slice:
    """The next batch of changes of the rows that `scan` finds: `head` first, and `tail` after the last ones.

    At most `at_most` changes. `scan` may be kept for the next slice of the same work, but need not be.
    `in_columns` None: everything is decided one by one.
    """
    while True:
        rows, whole = scan.rows(image, at_most)
        unchanged: list[RowArray] = []
        for low in range(0, max(1, len(rows)), at_most):
            part = rows[low : low + at_most]
            pieces, stays = _decide(part, one_by_one, in_columns)
            unchanged.append(stays)
            done = whole and low + at_most >= len(rows)
            if pieces or done:
                _settle(scan, image, rows, np.concatenate(unchanged))
                return Slice(records=in_pieces([*head, *pieces, *(tail if done else ())]), done=done)
        # Nothing is due for any of them, so their chunks are skipped from now on.
        _settle(scan, image, rows, np.concatenate(unchanged))


def _decide(
    rows: RowArray, one_by_one: OneByOne, in_columns: InColumns | None
) -> tuple[list[Record | Bulk], RowArray]:
    """The changes of `rows`, and the rows that stay unchanged."""
    pieces: list[Record | Bulk] = []
    left, stays = rows, rows[:0]
    if in_columns is not None and len(rows) >= MIN_ROWS:
        decided = in_columns(rows)
        pieces += decided.changes
        left, stays = rows[decided.odd], rows[~decided.odd & ~decided.changed]
    unchanged = []
    for row in left.tolist():
        change = one_by_one(row)
        if change is None:
            unchanged.append(row)
        else:
            pieces.append(change)
    return pieces, np.concatenate([stays, np.array(unchanged, dtype=np.int64)])


def _settle(scan: Scan, image: MetadataImage, rows: RowArray, unchanged: RowArray) -> None:
    """Chunks in which every row that was found stays unchanged need no further look."""
    if not len(unchanged):
        return
    busy = np.setdiff1d(rows, unchanged, assume_unique=True) >> CHUNK_SHIFT
    scan.settle(image, unchanged[~np.isin(unchanged >> CHUNK_SHIFT, busy)])


# Finds the partitions that name a broker, chunk by chunk, and remembers which chunks need no second look.
# Chunks are copy-on-write: as long as a chunk is the same object, the findings in it are valid, whatever
# changed elsewhere between two slices.

Local = npt.NDArray[np.int64]
Find = Callable[[Chunk], Local]


CHUNKS_PER_SLICE_MAX = 200
"""Chunks with rows to change that one slice looks at: each of them is copied when it is changed, so for a
broker with few partitions in every chunk of a large image a chunk costs as much as for one with many."""


class Scan:
    """Rows of `find`, in ascending order. `settled` chunks are skipped until they change."""

    __slots__ = ("_find", "_settled")

    def __init__(self, find: Find) -> None:
        self._find = find
        self._settled: dict[int, Chunk] = {}

    def rows(self, image: MetadataImage, at_most: int) -> tuple[RowArray, bool]:
        """Rows of whole chunks until there are more than `at_most`, or until a slice has enough chunks to
        copy, and whether all chunks were looked at."""
        rows: list[Local] = []
        count = 0
        settled = self._settled
        for number, chunk in enumerate(image.topics.columns.chunks):
            if settled.get(number) is chunk:
                continue
            local = self._find(chunk)
            if not local.size:
                settled[number] = chunk
                continue
            rows.append(local + (number << CHUNK_SHIFT))
            count += local.size
            if count > at_most or len(rows) == CHUNKS_PER_SLICE_MAX:
                return np.concatenate(rows), False
        return (np.concatenate(rows) if rows else np.empty(0, dtype=np.int64)), True

    def settle(self, image: MetadataImage, rows: RowArray) -> None:
        """Nothing is due for the rows that were found in the chunks of `rows`."""
        chunks = image.topics.columns.chunks
        for at in np.unique(rows >> CHUNK_SHIFT).tolist():
            self._settled[at] = chunks[at]


def naming(broker_id: int) -> Find:
    """Partitions that the broker leads or is in sync with."""

    def find(chunk: Chunk) -> Local:
        data = chunk.data
        hits = np.bitwise_or.reduce(data[chunk.isr_start :] == broker_id, axis=0)
        hits |= data[LEADER] == broker_id
        found: Local = hits.nonzero()[0]
        return found

    return find


def counting_on(broker_id: int) -> Find:
    """As `naming`, and partitions that may keep the broker as an eligible leader: a superset."""
    named = naming(broker_id)

    def find(chunk: Chunk) -> Local:
        data = chunk.data
        held = (data[LISTS : LISTS + chunk.replica_width] == broker_id).any(axis=0)
        found: Local = np.union1d(named(chunk), np.flatnonzero(held & _has_rare(chunk)))
        return found

    return find


def lying_in(image: MetadataImage, broker_id: int, directories: Collection[bytes]) -> Find:
    """Partitions that the broker leads or is in sync with, and whose replica it has in one of the
    directories. `image` has the codes of directories: this image and later ones."""
    named, table = naming(broker_id), image.topics.columns.directories

    def find(chunk: Chunk) -> Local:
        codes = [code for code in map(table.find, directories) if code is not None]
        data, width = chunk.data, chunk.replica_width
        mine = data[LISTS : LISTS + width] == broker_id
        inside = (mine & np.isin(data[LISTS + width : LISTS + 2 * width], codes)).any(axis=0)
        found: Local = np.intersect1d(named(chunk), np.flatnonzero(inside), assume_unique=True)
        return found

    return find


def listing_rare(chunk: Chunk) -> Local:
    """Partitions with lists that are empty for nearly every partition: those being reassigned, and those with
    eligible leader replicas."""
    found: Local = np.flatnonzero(_has_rare(chunk))
    return found


def _has_rare(chunk: Chunk) -> npt.NDArray[np.bool_]:
    has: npt.NDArray[np.bool_] = (chunk.data[TOPIC] >= 0) & (chunk.data[FLAGS] & RARE_FLAG != 0)
    return has


def leaderless(broker_id: int | None) -> Find:
    """Partitions without a leader; with `broker_id`, only those with a replica on it."""

    def find(chunk: Chunk) -> Local:
        data = chunk.data
        lost = (data[LEADER] == NO_LEADER) & (data[TOPIC] >= 0)
        found: Local = np.flatnonzero(lost)
        if broker_id is None or not found.size:
            return found
        held: Local = found[(data[LISTS : LISTS + chunk.replica_width, found] == broker_id).any(axis=0)]
        return held

    return find


def not_preferred(chunk: Chunk) -> Local:
    """Partitions that are not led by their first replica, including leaderless ones."""
    data = chunk.data
    found: Local = np.flatnonzero((data[TOPIC] >= 0) & (data[LEADER] != data[LISTS]))
    return found
