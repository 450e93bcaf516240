"""The tables of topics and partitions, by column: no loop over two million partitions for one page."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from metaquorum.metadata.errors import InspectError
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.image.chunk import (
    INDEX,
    LEADER,
    LEADER_EPOCH,
    LISTS,
    N_ISR,
    N_REPLICAS,
    PARTITION_EPOCH,
    TOPIC,
    IntArray,
    RowArray,
)
from metaquorum.metadata.image.types import NO_LEADER
from metaquorum.metadata.inspect.timeline.spans import under_min_isr_rows
from metaquorum.metadata.offline import directory_online
from metaquorum.metadata.settings.keys import MAX_INT, whole_number
from metaquorum.metadata.text.tree import partition_tree

LEADERLESS, UNDER_MIN_ISR, OUT_OF_SYNC, REASSIGNING = "leaderless", "underMinIsr", "outOfSync", "reassigning"
SHOWS = (LEADERLESS, UNDER_MIN_ISR, OUT_OF_SYNC, REASSIGNING)
_SORTED_BY = {
    "partition": INDEX,
    "leader": LEADER,
    "isr": N_ISR,
    "replicas": N_REPLICAS,
    "leaderEpoch": LEADER_EPOCH,
    "partitionEpoch": PARTITION_EPOCH,
}
"""The columns of partitions by which rows are sorted as numbers; lists by their length."""

_COUNTED_DIRECTLY_BELOW = 1 << 12
"""Broker ids below this are counted with one array of this size; larger ones by sorting."""

_NO_ONE = -2

Window = tuple[int, int | None]
"""The numbers of the rows that are wanted: the first one, and the one after the last (None: all)."""


class RowsFound(NamedTuple):
    """Some rows of a table, how many fit and how many there are, and what else could be shown."""

    rows: list[dict[str, Any]]
    fitting: int
    total: int
    shows: tuple[str, ...]


def rows_in_trouble(image: MetadataImage, show: str) -> RowArray:
    """Rows of partitions in one of the states of SHOWS. Raises InspectError for any other word."""
    columns = image.topics.columns
    match show:
        case "leaderless":
            return image.topics.rows_without_leader()
        case "underMinIsr":
            return under_min_isr_rows(image)
        case "outOfSync":
            live = columns.live_rows()
            return live[columns.gather(N_ISR, live) < columns.gather(N_REPLICAS, live)]
        case "reassigning":
            moving = [row for row, rare in columns.rare.items_sorted() if rare.adding or rare.removing]
            return np.array(moving, dtype=np.int64)
    raise InspectError(f"there is no state {show!r} of partitions; known are {', '.join(SHOWS)}")


def _trouble(image: MetadataImage, rows: RowArray) -> IntArray:
    """How bad the state of each row is: 0 for a partition that is in none of SHOWS; the first of them weighs
    more than all others together."""
    every = np.zeros(int(image.topics.columns.live_rows().max(initial=-1)) + 1, dtype=np.int32)
    for weight, show in enumerate(reversed(SHOWS)):
        every[rows_in_trouble(image, show)] += 1 << weight
    return every[rows]


def leaders_and_in_sync(image: MetadataImage) -> tuple[Counter[int], Counter[int]]:
    """How many partitions each broker leads, and of how many it is in the ISR, in one pass over them."""
    leaders, in_sync = Counter[int](), Counter[int]()
    for chunk in image.topics.columns.chunks:
        data = chunk.data  # a free row has -1 everywhere
        for counter, listed in ((leaders, data[LEADER]), (in_sync, data[chunk.isr_start :])):
            if listed.size and int(listed.max()) < _COUNTED_DIRECTLY_BELOW:
                counts = np.bincount(listed.ravel() + 1)  # none, and padding, are -1
                ids = np.flatnonzero(counts)
                pairs = zip((ids - 1).tolist(), counts[ids].tolist(), strict=True)
            else:
                pairs = zip(
                    *(column.tolist() for column in np.unique(listed, return_counts=True)), strict=True
                )
            counter.update(dict(pairs))
    return leaders, in_sync


def offline_replicas(image: MetadataImage) -> dict[int, dict[bytes, int]]:
    """How many replicas each broker has in each log directory that is offline according to its registration;
    brokers and directories without any are absent."""
    columns = image.topics.columns
    usual = np.full(len(columns.directories), _NO_ONE, dtype=np.int64)  # which broker has a directory online
    for broker_id, known in image.brokers.items():
        own = (columns.directories.find(directory) for directory in known.directories)
        # The table grows while another thread reads on.
        usual[[code for code in own if code is not None and code < len(usual)]] = broker_id
    doubtful: Counter[tuple[int, int]] = Counter()
    for chunk in columns.chunks:
        width = chunk.replica_width
        lists = chunk.data[LISTS : LISTS + 2 * width, chunk.data[TOPIC] >= 0]
        brokers, codes = lists[:width].ravel(), lists[width:].ravel()
        odd = (brokers >= 0) & (usual[codes] != brokers)
        if odd.any():
            pairs, counts = np.unique(np.stack((brokers[odd], codes[odd])), axis=1, return_counts=True)
            doubtful.update(dict(zip(map(tuple, pairs.T.tolist()), counts.tolist(), strict=True)))
    by_broker: dict[int, dict[bytes, int]] = {}
    for (broker_id, code), count in doubtful.items():
        (directory,) = columns.directories.ids([code])
        if not directory_online(image.brokers, broker_id, directory):
            by_broker.setdefault(broker_id, {})[directory] = count
    return by_broker


def topics_in_trouble(
    image: MetadataImage, rows: RowArray, limit: int
) -> tuple[list[tuple[str, int, int]], int, int]:
    """The topics with the most partitions among some rows: name, how many, the first one's index; then how
    many other topics there are, and how many of these partitions they have."""
    topics, columns = image.topics, image.topics.columns
    slots, indexes = columns.gather(TOPIC, rows), columns.gather(INDEX, rows)
    present, counts = np.unique(slots, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    worst = [
        (
            topics.by_id[topics.by_slot[slot]].info.name,
            int(counts[number]),
            int(indexes[slots == slot].min()),
        )
        for number in order[:limit].tolist()
        for slot in (int(present[number]),)
    ]
    return worst, len(order[limit:]), int(counts[order[limit:]].sum())


def _shown(image: MetadataImage, show: str) -> RowArray:
    """The rows that a filter selects: a state, `broker=3` (a replica), `leader=3`, or all."""
    name, equals, number = show.partition("=")
    if equals and name in ("broker", "leader"):
        broker_id = whole_number(number, MAX_INT)
        if broker_id is None:
            raise InspectError(f"{number!r} is not a broker id; write for example {name}=3")
        topics = image.topics
        return topics.rows_with_replica(broker_id) if name == "broker" else topics.rows_led_by(broker_id)
    return rows_in_trouble(image, show) if show else image.topics.columns.live_rows()


class _Names(NamedTuple):
    """Every topic's name in order, and its rank and name by slot."""

    names: list[str]
    slots: IntArray
    ranks: IntArray


@lru_cache(maxsize=4)
def _names(by_name: _ByIdentity) -> _Names:
    topics = by_name.image.topics
    listed = topics.by_name.items_sorted()
    slots = np.array([topics.by_id[topic_id].slot for _, topic_id in listed], dtype=np.int32)
    ranks = np.zeros(max(1, topics.next_slot), dtype=np.int32)
    ranks[slots] = np.arange(len(listed), dtype=np.int32)
    return _Names([name for name, _ in listed], slots, ranks)


class _ByIdentity:
    """An image as a key of a cache: images that share their topics' names share the entry."""

    def __init__(self, image: MetadataImage) -> None:
        self.image = image

    def __hash__(self) -> int:
        return id(self.image.topics.by_name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByIdentity) and other.image.topics.by_name is self.image.topics.by_name


def partition_rows(
    image: MetadataImage, text: str, show: str, order: tuple[str, bool], window: Window
) -> RowsFound:
    """The partitions whose topic's name contains `text` (`NAME/3`: one partition), of those that `show`
    selects. Sorted by topic and index unless `order`, a column and whether it descends, says otherwise; what
    has no leader is last either way."""
    topics, columns = image.topics, image.topics.columns
    names = _names(_ByIdentity(image))
    rows = _shown(image, show)
    name, slash, number = text.partition("/")
    if name:
        fits = np.zeros(len(names.ranks), dtype=bool)
        wanted = name.lower()
        for rank, each in enumerate(names.names):
            fits[names.slots[rank]] = each == name if slash else wanted in each.lower()
        rows = rows[fits[columns.gather(TOPIC, rows)]]
    if slash and number:
        index = whole_number(number, MAX_INT)
        rows = rows[columns.gather(INDEX, rows) == (-1 if index is None else index)]
    column, descending = order
    keys = [columns.gather(INDEX, rows), names.ranks[columns.gather(TOPIC, rows)]]
    if column == "state":
        keys.append(_trouble(image, rows))
    elif column in _SORTED_BY:
        keys.append(columns.gather(_SORTED_BY[column], rows))
    if descending:
        keys[-1] = -keys[-1]
    if column == "leader":
        keys.append(columns.gather(LEADER, rows) == NO_LEADER)
    rows = rows[np.lexsort(keys)]
    shown = rows[window[0] : window[1]]
    under = set(under_min_isr_rows(image).tolist()) if len(shown) else set()
    made = [_partition(image, row, row in under) for row in shown.tolist()]
    return RowsFound(made, len(rows), topics.partition_count, SHOWS)


def _partition(image: MetadataImage, row: int, is_under: bool) -> dict[str, Any]:
    info = image.topics.at(row)
    topic = image.topics.by_id[info.topic_id].info.name
    words = [
        *([LEADERLESS] if info.leader == NO_LEADER else []),
        *([UNDER_MIN_ISR] if is_under else []),
        *([OUT_OF_SYNC] if len(info.isr) < len(info.replicas) else []),
        *([REASSIGNING] if info.adding or info.removing else []),
    ]
    return {
        "path": f"topic/{topic}/{info.index}",
        "topic": topic,
        "partition": info.index,
        "state": words,
        **partition_tree(info),
    }


def topic_rows(
    image: MetadataImage, text: str, show: str, order: tuple[str, bool], window: Window
) -> RowsFound:
    """The topics whose name contains `text`; with `show`, those with a partition in that state."""
    topics, columns = image.topics, image.topics.columns
    names = _names(_ByIdentity(image))
    live = columns.live_rows()
    slots, size = columns.gather(TOPIC, live), len(names.ranks)
    counts = {
        "partitions": np.bincount(slots, minlength=size),
        "replicas": np.bincount(slots, weights=columns.gather(N_REPLICAS, live), minlength=size),
    }
    for state in SHOWS[:3]:
        in_trouble = columns.gather(TOPIC, rows_in_trouble(image, state))
        counts[state] = np.bincount(in_trouble, minlength=size)
    fits = np.array([text.lower() in name.lower() for name in names.names], dtype=bool)
    if show:
        fits &= np.bincount(columns.gather(TOPIC, _shown(image, show)), minlength=size)[names.slots] > 0
    ranks = np.flatnonzero(fits)
    column, descending = order
    keys = [ranks]
    if column in counts:
        keys.append(counts[column][names.slots[ranks]])
    if descending:
        keys[-1] = -keys[-1]
    ranks = ranks[np.lexsort(keys)]
    made = [
        {
            "path": f"topic/{names.names[rank]}",
            "topic": names.names[rank],
            **{name: int(values[names.slots[rank]]) for name, values in counts.items()},
        }
        for rank in ranks[window[0] : window[1]].tolist()
    ]
    return RowsFound(made, len(ranks), len(topics), SHOWS)
