"""Rows of `partition_states` from columns, as Arrow record batches.

Owns the step from `StateColumns` to Arrow. Does not decide when a state ends (`pipeline.intervals`
does) and does not write files.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from metaquorum.metadata.image.chunk import (
    FLAGS,
    INDEX,
    LEADER,
    LEADER_EPOCH,
    LISTS,
    N_ISR,
    N_REPLICAS,
    PARTITION_EPOCH,
    RECOVERING_FLAG,
)
from metaquorum.metadata.image.columns import NO_RARE_FIELDS
from metaquorum.pipeline.arrow.base import CHUNK_ROWS, padded_lists, same, times
from metaquorum.pipeline.intervals.moments import DAY_MS
from metaquorum.pipeline.intervals.states.ended import (
    ACTOR,
    CHANGED,
    KNOWN,
    OFFSET,
    STATE_FLAGS,
    TIME_MS,
    UNCLEAN,
    StateColumns,
    topic_text,
)
from metaquorum.storage.uuids import uuid_to_text

_LISTS = pa.list_(pa.int32())


def state_batches(parts: Sequence[StateColumns], schema: pa.Schema) -> Iterator[tuple[int, pa.RecordBatch]]:
    """(day since 1970, rows): the rows of each part in order, those of one day together."""
    for _, alike in itertools.groupby(parts, _layout):
        whole = _together(list(alike))
        ms = whole.began[TIME_MS]
        days = np.where(ms < 0, 0, ms) // DAY_MS
        for day in np.unique(days).tolist():
            found = pa.RecordBatch.from_arrays(_columns(whole.where(days == day)), schema=schema)
            for low in range(0, found.num_rows, CHUNK_ROWS):
                yield day, found.slice(low, CHUNK_ROWS)


def _layout(part: StateColumns) -> tuple[int, int, int, int]:
    return id(part.words), id(part.directories), part.replica_width, len(part.states)


def _together(parts: list[StateColumns]) -> StateColumns:
    """Parts with the same layout as one part."""
    ends = np.cumsum([part.size for part in parts]).tolist()
    starts = [0, *ends]
    return parts[0]._replace(
        states=np.concatenate([part.states for part in parts], axis=1),
        rare={
            start + at: rare
            for start, part in zip(starts, parts, strict=False)
            for at, rare in part.rare.items()
        },
        topics=np.concatenate([part.topics for part in parts]),
        began=np.concatenate([part.began for part in parts], axis=1),
        to_offsets=np.concatenate([part.to_offsets for part in parts]),
        to_ms=np.concatenate([part.to_ms for part in parts]),
    )


def _columns(rows: StateColumns) -> list[pa.Array]:
    states, began, words, count = rows.states, rows.began, rows.words, rows.size
    middle = LISTS + rows.replica_width
    start = middle + rows.replica_width
    names, ids = zip(*words.topics.values, strict=True)
    directories = padded_lists(states[middle:start].T, states[N_REPLICAS])
    flags = began[STATE_FLAGS]
    return [
        *(_texts(names, rows.topics), _texts([topic_text(at) for at in ids], rows.topics)),
        *(pa.array(states[at]) for at in (INDEX, LEADER, LEADER_EPOCH, PARTITION_EPOCH)),
        padded_lists(states[LISTS:middle].T, states[N_REPLICAS]),
        padded_lists(states[start:].T, states[N_ISR]),
        pa.ListArray.from_arrays(directories.offsets, _directories(rows, directories.values)),
        *(_rare(rows, name) for name in ("adding", "removing")),
        pa.array(states[FLAGS] & RECOVERING_FLAG != 0),
        pa.array(flags & UNCLEAN != 0),
        _texts(words.changed.values, began[CHANGED]),
        same(False, count, pa.bool_()),
        *(pa.array(began[OFFSET]), times(began[TIME_MS]), pa.array(rows.to_offsets), times(rows.to_ms)),
        *(pa.array(flags & KNOWN != 0), same(True, count, pa.bool_())),
        _texts(words.actors.values, began[ACTOR]),
    ]


def _texts(texts: Sequence[str | None], places: Any) -> pa.Array:
    return pa.array(texts, pa.string()).take(pa.array(places))


def _directories(rows: StateColumns, codes: pa.Array) -> pa.Array:
    distinct, places = np.unique(codes.to_numpy(), return_inverse=True)
    return _texts([uuid_to_text(at) for at in rows.directories.ids(distinct.tolist())], places)


def _rare(rows: StateColumns, name: str) -> pa.Array:
    if not rows.rare:
        return pa.ListArray.from_arrays(pa.array(np.zeros(rows.size + 1, np.int32)), pa.array([], pa.int32()))
    lists = [getattr(rows.rare.get(at, NO_RARE_FIELDS), name) for at in range(rows.size)]
    return pa.array(lists, _LISTS)
