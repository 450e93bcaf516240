"""A stretch of one-record partition changes handled at once: what each found and left, as steps.

Owns the step from columns to objects, for the changes that a caller wants. Does not derive causes or events,
or replay: `columnar` applies the changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from metaquorum.metadata.columnar.apply_changes import Versions, store, versions_of
from metaquorum.metadata.columnar.frames import Frames
from metaquorum.metadata.columnar.singles import read_run
from metaquorum.metadata.image import ImageBuilder
from metaquorum.metadata.image.chunk import IntArray
from metaquorum.metadata.inspect.changes.change_steps import BatchChanges, PartitionStep
from metaquorum.metadata.inspect.walk.concern import Stretch
from metaquorum.metadata.records.codec import decode
from metaquorum.storage.log.runs import BatchRun

Wanted = Callable[[Versions, IntArray], npt.NDArray[np.bool_]]
"""Decides which changes are wanted, given the changes and the rows before them."""


def nothing(versions: Versions, before: IntArray) -> npt.NDArray[np.bool_]:
    """Wants none of them."""
    return np.zeros(len(versions.rows), dtype=bool)


class Taken(NamedTuple):
    """A stretch that was applied."""

    run: BatchRun
    frames: Frames
    versions: Versions
    before: IntArray

    def changes(self, builder: ImageBuilder, wanted: Wanted) -> Iterator[BatchChanges]:
        """What each of the wanted changes did, in log order."""
        versions, frames, run, topics = self.versions, self.frames, self.run, builder.topics
        places = np.flatnonzero(wanted(versions, self.before))
        places = places[np.argsort(versions.records[places])]
        records, rows = versions.records[places], versions.rows[places]
        starts = frames.starts[records]
        steps = zip(
            records.tolist(),
            zip(starts.tolist(), (starts + frames.lengths[records]).tolist(), strict=True),
            zip(run.epochs()[records].tolist(), run.timestamps_ms()[records].tolist(), strict=True),
            topics.seen(versions.chunk(self.before[:, places]), rows),
            topics.seen(versions.chunk(versions.after[:, places]), rows),
            strict=True,
        )
        for number, (start, end), (epoch, time_ms), before, after in steps:
            offset = run.base_offset + number
            record = decode(frames.data, start, end)[1]
            found = BatchChanges(base_offset=offset, epoch=epoch, time_ms=time_ms)
            found.records.append((offset, record))
            found.partitions.append(
                PartitionStep(
                    offset=offset,
                    record=record,
                    topic=topics.by_id[after.topic_id].info.name,
                    index=after.index,
                    before=before,
                    after=after,
                )
            )
            yield found


def taken_together(builder: ImageBuilder, stretch: Stretch) -> Taken | None:
    """Applies a stretch of changes; None, with nothing applied, if one of them is unusual."""
    run = stretch.part()
    frames = read_run(run)
    versions = None if frames is None else versions_of(builder, frames, stretch.changes)
    if frames is None or versions is None:
        return None
    before = versions.before()
    store(builder, versions)
    builder.offset, builder.epoch = stretch.next_offset, stretch.epoch
    builder.timestamp_ms = stretch.time_ms
    return Taken(run, frames, versions, before)
