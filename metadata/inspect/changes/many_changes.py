"""A part of a run handled at once: what each partition change found and left, as steps, for those that a
caller wants. Between them, `ChangeFeed` applies the records of brokers; no other record is in a part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from metaquorum.metadata.columnar.apply import Versions, merged, store
from metaquorum.metadata.image import ImageBuilder
from metaquorum.metadata.image.chunk import LEADER, PADDING, IntArray
from metaquorum.metadata.image.topics import TopicsBuilder
from metaquorum.metadata.image.types import NO_LEADER
from metaquorum.metadata.inspect.changes.change_steps import PartitionStep
from metaquorum.metadata.inspect.walk.batch_filter import SLICE_MIN, RunPart
from metaquorum.metadata.records.codec import decode
from metaquorum.metadata.records.types import BrokerRegistrationChangeRecord, NoOpRecord
from metaquorum.storage.batches.places import Places

WANTED, IF_ACTIVE, IF_ASKED = 1, 2, 4
"""Whether a change is wanted; IF_ACTIVE: only if a broker that leaves the ISR with it is active after its
batch; IF_ASKED: only in the first batch of a part that names its cause."""

Wanted = Callable[[Versions, IntArray], npt.NDArray[np.int8]]
"""Decides which changes are wanted, given the changes and the rows before them."""


def nothing(versions: Versions, before: IntArray) -> npt.NDArray[np.int8]:
    """Wants none of them."""
    return np.zeros(len(versions.rows), dtype=np.int8)


class TakenBatch(NamedTuple):
    """A batch of a part with something to report: its number in the run, its other records by their
    numbers, and its changes as places in the versions: the wanted ones, and those wanted IF_ACTIVE."""

    number: int
    others: dict[int, Any]
    places: list[int]
    doubtful: list[int]


class Taken:
    """A part whose partition changes were applied."""

    def __init__(self, part: RunPart, versions: Versions, before: IntArray) -> None:
        self.part = part
        self.is_slice = part.batches == 1 and len(versions.rows) >= SLICE_MIN
        """Whether it is one batch that may be part of a split fence; among others, none is as large."""
        self._versions = versions
        self._before = before

    def batches(self, wanted: Wanted) -> Iterator[TakenBatch]:
        """The batches with other records or wanted changes, in log order."""
        versions, run = self._versions, self.part.run
        others = self.part.others()
        levels = wanted(versions, self._before)
        numbers = run.batch_of(versions.records)
        of_others = run.batch_of(np.array(list(others), dtype=np.int64)).tolist()
        whole = {
            batch
            for batch, record in zip(of_others, others.values(), strict=True)
            if isinstance(record, BrokerRegistrationChangeRecord) and record.log_dirs
        }
        if whole:  # a directory that failed affects partitions that no event is about
            levels[np.isin(numbers, list(whole))] = WANTED
        self._settle_asked(levels, numbers, dict(zip(of_others, others.values(), strict=True)))
        places = np.flatnonzero(levels)
        places = places[np.argsort(versions.records[places], kind="stable")]
        taken: dict[int, TakenBatch] = {}
        for batch, (number, record) in zip(of_others, others.items(), strict=True):
            taken.setdefault(batch, TakenBatch(batch, {}, [], [])).others[number] = record
        for batch, position, level in zip(
            numbers[places].tolist(), places.tolist(), levels[places].tolist(), strict=True
        ):
            found = taken.setdefault(batch, TakenBatch(batch, {}, [], []))
            (found.places if level == WANTED else found.doubtful).append(position)
        for batch in sorted(taken):
            yield taken[batch]

    @staticmethod
    def _settle_asked(levels: npt.NDArray[np.int8], numbers: Places, others: dict[int, Any]) -> None:
        """Decides which changes with IF_ASKED are wanted. `numbers` are those of their batches, `others` are
        other records by theirs."""
        doubtful = (levels & IF_ASKED) != 0
        levels &= ~IF_ASKED
        asked = [number for number, record in others.items() if isinstance(record, NoOpRecord)]
        if doubtful.any() and asked:
            first = numbers[doubtful & np.isin(numbers, asked)][:1]
            levels[doubtful & np.isin(numbers, first)] = WANTED

    def leaders_before(self, batch: int) -> frozenset[int]:
        """The brokers that led the partitions that a batch of the run changes."""
        run, versions = self.part.run, self._versions
        first, last = (int(at) - run.base_offset for at in run.offsets[batch : batch + 2])
        here = (versions.records >= first) & (versions.records < last)
        return frozenset(self._before[LEADER, here].tolist())

    def leads_after(self, batch: int, broker_id: int, topics: TopicsBuilder) -> bool:
        """Whether a broker leads a partition right after a batch of the run. `topics` are those after all
        changes: what later batches changed counts as they found it."""
        versions = self._versions
        later: npt.NDArray[np.bool_] = (
            versions.records >= int(self.part.run.offsets[batch + 1]) - self.part.run.base_offset
        )
        begins, ends = later.copy(), later.copy()
        begins[1:] &= versions.first[1:] | ~later[:-1]
        ends[:-1] &= versions.first[1:]
        if (self._before[LEADER, begins] == broker_id).any():
            return True
        return topics.led_by(broker_id) > int((versions.after[LEADER, ends] == broker_id).sum())

    def moved_off(self) -> dict[int, int]:
        """The brokers that lost a leadership for which they stayed out of the ISR or which no one got, with
        the number of the last record that says so."""
        before, after = self._before, self._versions.after
        led = before[LEADER]
        kept = (after[self._versions.chunk(after).isr_start :] == led).any(axis=0)
        lost = np.flatnonzero((led != after[LEADER]) & (~kept | (after[LEADER] == NO_LEADER)))
        lost = lost[np.argsort(self._versions.records[lost])]
        return dict(zip(led[lost].tolist(), self._versions.records[lost].tolist(), strict=True))

    def left(self, places: list[int]) -> list[list[int]]:
        """The brokers that leave the ISR with each of these changes, and PADDING."""
        versions = self._versions
        start = versions.chunk(versions.after).isr_start
        before, after = self._before[start:, places], versions.after[start:, places]
        stays = (before[:, None] == after[None]).any(axis=1)
        gone: list[list[int]] = np.where(stays, PADDING, before).T.tolist()
        return gone

    def steps(self, builder: ImageBuilder, places: list[int]) -> Iterator[PartitionStep]:
        """Some changes, in log order."""
        if not places:
            return
        versions, topics = self._versions, builder.topics
        frames, base_offset = self.part.frames, self.part.run.base_offset
        chosen: Places = np.array(places, dtype=np.int64)
        chosen = chosen[np.argsort(versions.records[chosen], kind="stable")]
        records, rows = versions.records[chosen], versions.rows[chosen]
        starts = frames.starts[records]
        for number, start, end, before, after in zip(
            records.tolist(),
            starts.tolist(),
            (starts + frames.lengths[records]).tolist(),
            topics.seen(versions.chunk(self._before[:, chosen]), rows),
            topics.seen(versions.chunk(versions.after[:, chosen]), rows),
            strict=True,
        ):
            yield PartitionStep(
                offset=base_offset + number,
                record=decode(frames.data, start, end)[1],
                topic=topics.by_id[after.topic_id].info.name,
                index=after.index,
                before=before,
                after=after,
            )


def taken_together(builder: ImageBuilder, part: RunPart) -> Taken | None:
    """Applies a part's partition changes; None, with nothing applied, if one is unusual."""
    versions = merged(builder, part.groups())
    if versions is None:
        return None
    before = versions.before()
    store(builder, versions)
    return Taken(part, versions, before)
