"""Many partition changes as a single step: their effects, and the rules they broke.

A part may be checked as a whole if it changes only partitions, all of them known, each at most once in a
batch and in the form that a correct controller writes. The versions of the rows are then the states after the
batches, and a broken rule belongs to the batch that broke it. Anything unusual is left to the caller, batch
by batch.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from metaquorum.metadata.columnar.apply import Versions, merged
from metaquorum.metadata.image import ImageBuilder, MetadataImage
from metaquorum.metadata.image.chunk import FLAGS, LEADER_EPOCH, N_ISR, PARTITION_EPOCH, RARE_FLAG, RowArray
from metaquorum.metadata.image.columns import NO_RARE_FIELDS
from metaquorum.metadata.inspect.walk.batch_filter import RunPart
from metaquorum.metadata.inspect.walk.steps import Passed
from metaquorum.metadata.invariants import (
    COLUMN_RULES,
    ChunkView,
    Violation,
    partition_path,
    rare_row_violations,
)
from metaquorum.storage.batches.format import parse_header
from metaquorum.storage.batches.places import Places

_RULES = tuple(COLUMN_RULES.items())
RULES = len(_RULES) + 1
"""Rules of `Broken`: those about columns, plus the one about an ISR without members."""


class BatchPlace(NamedTuple):
    """The place of a batch."""

    offset: int
    epoch: int
    time_ms: int


class Broken(NamedTuple):
    """Which batches broke which rules: the numbers of batch (in the run) and rule, and the row."""

    batches: Places
    rules: npt.NDArray[np.int64]
    rows: RowArray


class FastForward(Passed, frozen=True, kw_only=True):
    """A part with the image after it and the effect of its changes."""

    after: MetadataImage
    versions: Versions

    @property
    def offset(self) -> int:
        """Base offset of the last batch with a change."""
        run = self.part.run
        return int(run.offsets[int(run.batch_of(self.versions.records.max(keepdims=True))[0])])

    def broken(self) -> Broken:
        """Broken rules of the partitions, in log order."""
        image, versions = self.after, self.versions
        known, active = image.brokers.ids()
        view = ChunkView(versions.chunk(versions.after), known, active)
        rules = [np.flatnonzero(broken(view)) for _, _, broken in COLUMN_RULES.values()]
        rules.append(np.flatnonzero(versions.after[N_ISR] == 0))
        places = np.concatenate(rules)
        numbers = np.repeat(np.arange(len(rules)), [len(one) for one in rules])
        batches = self.part.run.batch_of(versions.records[places])
        order = np.argsort(batches, kind="stable")
        return Broken(batches[order], numbers[order], versions.rows[places][order])

    def violations(self, batch: int, rule: int, row: int) -> tuple[BatchPlace, Iterable[Violation]]:
        """One item of `broken` in words, with the place of its batch."""
        image, run = self.after, self.part.run
        header = parse_header(run.data, int(run.places[batch]))
        batch_place = BatchPlace(header.base_offset, header.leader_epoch, header.max_timestamp_ms)
        if rule == len(COLUMN_RULES):
            return batch_place, rare_row_violations(image, row, NO_RARE_FIELDS, True)
        name, (severity, text, _) = _RULES[rule]
        return batch_place, (Violation(name, severity, partition_path(image.topics, row), text),)


def versions_in(builder: ImageBuilder, part: RunPart) -> Versions | None:
    """What a part's changes do to the partitions, in the state before it; None if one is unusual or
    concerns an unknown partition."""
    return merged(builder, part.groups())


def first_unfit(part: RunPart, versions: Versions, epoch: int) -> int:
    """The number (in the part) of the first batch that must be looked at alone; the number of batches if
    there is none. Reasons: a leader epoch or partition epoch that does not grow, a change without effect, a
    partition that the batch changes twice, rare fields, an epoch of the log that decreases (`epoch` is the
    one before the part)."""
    before, after = versions.before(), versions.after
    unfit = after[PARTITION_EPOCH] <= before[PARTITION_EPOCH]
    unfit |= after[LEADER_EPOCH] < before[LEADER_EPOCH]
    unfit |= (after[FLAGS] & RARE_FLAG) != 0
    differs = after != before
    differs[PARTITION_EPOCH] = False
    unfit |= ~differs.any(axis=0)
    batches = part.run.batch_of(versions.records) - part.low
    unfit[1:] |= (batches[1:] == batches[:-1]) & ~versions.first[1:]
    epochs = part.as_run().epochs()
    falls = np.flatnonzero(np.diff(epochs, prepend=epoch) < 0)
    return int(min([*batches[unfit], *falls[:1], part.batches]))
