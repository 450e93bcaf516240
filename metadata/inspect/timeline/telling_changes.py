"""Which of many partition changes a timeline must look at; the others are passed over in columns.

Owns which changes can cause an event of some severity or begin or end a span. May select too many, never too
few. Knows no texts.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from metaquorum.metadata.columnar.apply_changes import Versions
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

Bools = npt.NDArray[np.bool_]


def may_tell(
    versions: Versions, before: IntArray, shown: frozenset[str], least_isr: Callable[[IntArray], IntArray]
) -> Bools:
    """For each change, whether it may begin or end a span, or cause an event of a severity in `shown`.
    `least_isr` returns the min.insync.replicas of topics by their slots."""
    after = versions.after
    if "detail" in shown:
        return np.ones(len(versions.rows), dtype=bool)
    led = before[LEADER] != after[LEADER]
    found: Bools = led & ((before[LEADER] == NO_LEADER) | (after[LEADER] == NO_LEADER))
    found |= _under_min(before, after, least_isr)
    isr = versions.chunk(after).isr_start
    alone = (after[N_ISR] == 1) | (after[FLAGS] & ~before[FLAGS] & RECOVERING_FLAG != 0)
    found |= led & alone & ~(before[isr:] == after[LEADER]).any(axis=0)  # possibly unclean
    if shown <= {"critical"}:
        return found
    if "info" in shown:
        found |= led
    found |= before[FLAGS] != after[FLAGS]
    directories = slice(LISTS + versions.replica_width, isr)
    found |= (before[directories] != after[directories]).any(axis=0)
    for member in before[isr:]:  # a member that left
        found |= (member != PADDING) & ~(after[isr:] == member).any(axis=0)
    return found


def _under_min(before: IntArray, after: IntArray, least_isr: Callable[[IntArray], IntArray]) -> Bools:
    """Which partitions are under min ISR before the change or after it."""
    fewest = np.minimum(before[N_ISR], after[N_ISR])
    found: Bools = fewest < after[N_REPLICAS]  # the minimum is capped at the number of replicas
    places = np.flatnonzero(found)
    found[places] = fewest[places] < np.minimum(least_isr(after[TOPIC, places]), after[N_REPLICAS, places])
    return found
