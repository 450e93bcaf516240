"""Many partition changes of one record a batch as one step: what they did, and what they broke.

Owns the proof that a stretch may be judged as a whole: it changes nothing but partitions, each once, and no
record was refused. So the state of each partition behind its own batch is that behind the stretch, and a
broken rule belongs to that batch. Whatever is unusual is left to the caller, batch by batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from metaquorum.metadata.columnar import changes
from metaquorum.metadata.columnar.apply_changes import rows_of
from metaquorum.metadata.columnar.frames import FRAME_BYTES, gather
from metaquorum.metadata.columnar.singles import read_run
from metaquorum.metadata.image import ImageBuilder, MetadataImage
from metaquorum.metadata.image.columns import (
    LEADER,
    LEADER_EPOCH,
    N_ISR,
    NO_RARE_FIELDS,
    PARTITION_EPOCH,
    Chunk,
    IntArray,
    RowArray,
)
from metaquorum.metadata.image.compare import rows_block
from metaquorum.metadata.inspect.walk.concern import Stretch
from metaquorum.metadata.inspect.walk.steps import Passed
from metaquorum.metadata.invariants import (
    COLUMN_RULES,
    ChunkView,
    Violation,
    partition_path,
    rare_row_violations,
)
from metaquorum.storage.log.runs import numbers_at

_EPOCH = 12
_NAME = np.dtype([("index", ">i4"), ("topic", np.uint64, (2,))])
"""A partition change begins with the partition's index and its topic's id."""


class Place(NamedTuple):
    """Where a batch stands."""

    offset: int
    epoch: int
    time_ms: int


class Leap(Passed, frozen=True, kw_only=True):
    """A stretch with the images around it. `rows` are those of the changed partitions, rising; `at` the
    numbers of their batches in the stretch; `block` the rows copied out, with lists of these widths."""

    stretch: Stretch
    before: MetadataImage
    after: MetadataImage
    rows: RowArray
    at: npt.NDArray[np.int64]
    block: IntArray
    widths: tuple[int, int]

    @property
    def offset(self) -> int:
        """Offset of the last change."""
        return self.stretch.base_offset + int(self.at.max())

    def violations(self) -> Iterator[tuple[Place, Violation]]:
        """Broken rules of the partitions, with the batch that broke each, in log order."""
        found = self._broken()
        if not found:
            return
        part = self.stretch.part()
        times = part.timestamps_ms()
        epochs = numbers_at(part.data, part.places[:-1] + _EPOCH, ">i4")
        for at, violation in sorted(found, key=lambda one: one[0]):
            yield Place(part.base_offset + at, int(epochs[at]), int(times[at])), violation

    def _broken(self) -> list[tuple[int, Violation]]:
        image = self.after
        known, active = image.brokers.ids()
        view = ChunkView(Chunk(self.block, *self.widths), known, active)
        found: list[tuple[int, Violation]] = []
        paths: dict[int, str] = {}
        for rule, (severity, text, broken) in COLUMN_RULES.items():
            for place in np.flatnonzero(broken(view)).tolist():
                path = paths.get(place)
                if path is None:
                    path = paths[place] = partition_path(image.topics, int(self.rows[place]))
                found.append((int(self.at[place]), Violation(rule, severity, path, text)))
        for place in np.flatnonzero(self.block[N_ISR] == 0).tolist():
            for one in rare_row_violations(image, int(self.rows[place]), NO_RARE_FIELDS, True):
                found.append((int(self.at[place]), one))
        return found


def changed_rows(builder: ImageBuilder, stretch: Stretch) -> tuple[RowArray, npt.NDArray[np.int64]] | None:
    """Rows of the partitions that a stretch changes, rising, and the numbers of the batches that do; None
    where one is not known here."""
    part = stretch.part()
    frames = read_run(part)
    if frames is None:
        return None
    at = np.flatnonzero(frames.keys == changes.API_KEY)
    names = gather(frames, frames.starts[at] + FRAME_BYTES, _NAME.itemsize, _NAME)
    order = np.argsort(names["topic"][:, 0], kind="stable")
    found = rows_of(builder, names["topic"][order], names["index"][order].astype(np.int32))
    if found is None:
        return None
    by_row = np.argsort(found, kind="stable")
    return found[by_row], at[order][by_row]


def leap(
    stretch: Stretch,
    before: MetadataImage,
    after: MetadataImage,
    found: tuple[RowArray, npt.NDArray[np.int64]],
) -> Leap | None:
    """The stretch as one step; None where it must be looked at batch by batch: a leader epoch or partition
    epoch that does not grow, a change that changed nothing, an epoch of the log that falls, rare fields."""
    rows, at = found
    part = stretch.part()
    epochs = numbers_at(part.data, part.places[:-1] + _EPOCH, ">i4")
    if int(epochs[0]) < before.provenance.epoch or (np.diff(epochs) < 0).any():
        return None
    if before.topics.columns.rare is not after.topics.columns.rare or any(
        after.topics.columns.rare.get(row) is not None for row in rows.tolist()
    ):
        return None
    widths = _widths(before, after)
    old = rows_block(before.topics.columns, rows, *widths)
    new = rows_block(after.topics.columns, rows, *widths)
    if (new[PARTITION_EPOCH] <= old[PARTITION_EPOCH]).any():
        return None
    led = new[LEADER_EPOCH] - old[LEADER_EPOCH]
    if ((led < 0) | ((led == 0) & (new[LEADER] != old[LEADER]))).any():
        return None
    differs = new != old
    differs[PARTITION_EPOCH] = False
    if not differs.any(axis=0).all():
        return None
    return Leap(
        batches=stretch.batches,
        next_offset=stretch.next_offset,
        epoch=stretch.epoch,
        time_ms=stretch.time_ms,
        stretch=stretch,
        before=before,
        after=after,
        rows=rows,
        at=at,
        block=new,
        widths=widths,
    )


def _widths(*images: MetadataImage) -> tuple[int, int]:
    """The widest lists of replicas, and of ISRs."""
    chunks = [chunk for image in images for chunk in image.topics.columns.chunks]
    width = max((chunk.replica_width for chunk in chunks), default=0)
    return width, max((chunk.isr_width for chunk in chunks), default=0)
