"""A pass of the cleaner over one log, as values: its input, what it has staged, and its result.

Owns what passes between processes: the values name files and must not hold open ones. `cleaning_pass` does
the work.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from metaquorum.storage.cleaner.plan import CleaningPlan, SegmentFacts
from metaquorum.storage.cleaner.retained import LastOfProducer
from metaquorum.storage.partition.aborted import AbortedTransaction


class CleaningEndedError(Exception):
    """The log has changed during the pass: the pass is over, and nothing is lost."""


class CleaningTask(msgspec.Struct, frozen=True, kw_only=True):
    """`segments` are those below the plan's end. `aborted` and `producers` are what the log knew of
    transactions and active producers when the pass began, at `now_ms` (wall clock). `key_bytes` is the
    memory for keys."""

    directory: str
    plan: CleaningPlan
    segments: tuple[SegmentFacts, ...]
    segment_bytes: int
    index_interval_bytes: int
    aborted: tuple[AbortedTransaction, ...]
    producers: dict[int, LastOfProducer]
    now_ms: int
    delete_retention_ms: int
    key_bytes: int


class Staged(NamedTuple):
    """One cleaned segment is durable beside those that it replaces: they begin at `bases`, and end at
    `end_offset`."""

    bases: list[int]
    end_offset: int


class CleaningResult(NamedTuple):
    """The result of a whole pass. `cleaned_to` is where the dirty part now begins."""

    cleaned_to: int
    bytes_read: int
    bytes_before: int
    bytes_after: int
    records_before: int
    records_after: int
    utilization: float
