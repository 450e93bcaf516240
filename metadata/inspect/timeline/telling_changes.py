"""Which of many partition changes a timeline must look at; the others are passed over in columns.

May select too many, never too few.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from metaquorum.metadata.columnar.apply import Versions
from metaquorum.metadata.image.chunk import (
    FLAGS,
    LEADER,
    LISTS,
    N_ISR,
    N_REPLICAS,
    PADDING,
    RECOVERING_FLAG,
    TOPIC,
    IntArray,
)
from metaquorum.metadata.image.types import NO_LEADER
from metaquorum.metadata.inspect.changes.many_changes import IF_ACTIVE, IF_ASKED, WANTED

Bools = npt.NDArray[np.bool_]


def may_tell(
    versions: Versions,
    before: IntArray,
    shown: frozenset[str],
    least_isr: Callable[[IntArray], IntArray],
    moves: bool = True,
) -> npt.NDArray[np.int8]:
    """For each change, whether it may begin or end a span, or cause an event of a severity in `shown`.
    `least_isr` returns the min.insync.replicas of topics by their slots. Without `moves`, a leader that
    another one replaces is an event only to show who asked for it."""
    after = versions.after
    if "detail" in shown:
        return np.full(len(versions.rows), WANTED, dtype=np.int8)
    led = before[LEADER] != after[LEADER]
    found: Bools = led & ((before[LEADER] == NO_LEADER) | (after[LEADER] == NO_LEADER))
    found |= _under_min(before, after, least_isr)
    isr = versions.chunk(after).isr_start
    outside = (after[N_ISR] == 1) & ~(before[isr:] == after[LEADER]).any(axis=0)
    found |= led & (outside | (after[FLAGS] & ~before[FLAGS] & RECOVERING_FLAG != 0))  # possibly unclean
    if shown <= {"critical"}:
        return found.astype(np.int8) * WANTED
    if "info" in shown and moves:
        found |= led
    found |= before[FLAGS] != after[FLAGS]
    directories = slice(LISTS + versions.replica_width, isr)
    found |= (before[directories] != after[directories]).any(axis=0)
    left: Bools = np.zeros_like(found)
    for member in before[isr:]:
        left |= (member != PADDING) & ~(after[isr:] == member).any(axis=0)
    levels = np.where(found, WANTED, left.astype(np.int8) * IF_ACTIVE).astype(np.int8)
    if "info" in shown and not moves:
        levels[led & (levels != WANTED)] |= IF_ASKED
    return levels


def _under_min(before: IntArray, after: IntArray, least_isr: Callable[[IntArray], IntArray]) -> Bools:
    """Which partitions are under min ISR before the change or after it."""
    fewest = np.minimum(before[N_ISR], after[N_ISR])
    found: Bools = fewest < after[N_REPLICAS]  # the minimum is capped at the number of replicas
    places = np.flatnonzero(found)
    found[places] = fewest[places] < np.minimum(least_isr(after[TOPIC, places]), after[N_REPLICAS, places])
    return found
