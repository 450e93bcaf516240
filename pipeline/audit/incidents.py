"""Groups stretches of trouble into incidents, and events into bursts.

Owns the rule: stretches are one incident if they overlap or are at most INCIDENT_GAP_MS apart. A stretch is
six numbers, since a log may have millions. Knows no causes and no severities; the table `incidents` is built
elsewhere, in `pipeline.intervals`.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar

import numpy as np

INCIDENT_GAP_MS = 60_000
T = TypeVar("T")
PartitionName = tuple[str, str, int]
"""Topic, topic id, index."""


class Incident(NamedTuple):
    """One period of trouble. `worst`: the partition with the most of it, `worst_ms`. `total_ms`:
    the sum over all partitions."""

    start_ms: int
    end_ms: int
    offset: int
    is_open: bool
    stretches: int
    partitions: int
    open_partitions: int
    worst: PartitionName
    worst_ms: int
    total_ms: int

    @property
    def until_ms(self) -> int | None:
        """The end; None if ongoing."""
        return None if self.is_open else self.end_ms

    @property
    def subject(self) -> str:
        """The entity path of the worst partition."""
        return f"topic/{self.worst[0]}/{self.worst[2]}"


class Stretches:
    """Stretches of trouble of partitions."""

    def __init__(self) -> None:
        self._rows = array("q")
        self._numbers: dict[PartitionName, int] = {}

    def add(
        self,
        partition: PartitionName,
        start_ms: int,
        end_ms: int,
        offset: int,
        *,
        lasted_ms: int | None = None,
        is_open: bool = False,
    ) -> None:
        """`lasted_ms`: how much of the span counts, if not all of it."""
        number = self._numbers.setdefault(partition, len(self._numbers))
        lasted = end_ms - start_ms if lasted_ms is None else lasted_ms
        self._rows.extend((start_ms, end_ms, lasted, offset, number, is_open))

    def longer_than(self, limit_ms: int) -> Stretches:
        """Only the stretches that lasted longer."""
        found = Stretches()
        found._numbers = self._numbers
        rows = np.frombuffer(self._rows, dtype=np.int64).reshape(-1, 6)
        found._rows = array("q", rows[rows[:, 2] > limit_ms].tobytes())
        return found

    def begun_within(self, start_ms: int, end_ms: int) -> int:
        """The number of stretches that began in that time, both ends included."""
        starts = np.frombuffer(self._rows, dtype=np.int64).reshape(-1, 6)[:, 0]
        return int(np.count_nonzero((starts >= start_ms) & (starts <= end_ms)))

    def incidents(self) -> Iterator[Incident]:
        """The incidents, by time."""
        if not self._rows:
            return
        rows = np.frombuffer(self._rows, dtype=np.int64).reshape(-1, 6)
        rows = rows[np.lexsort((rows[:, 3], rows[:, 0]))]
        names = list(self._numbers)
        until = np.maximum.accumulate(rows[:, 1])
        begins = np.flatnonzero(rows[1:, 0] > until[:-1] + INCIDENT_GAP_MS) + 1
        for part in np.split(rows, begins):
            numbers, places = np.unique(part[:, 4], return_inverse=True)
            lasted = np.zeros(len(numbers), dtype=np.int64)
            np.add.at(lasted, places, part[:, 2])
            worst = min(range(len(numbers)), key=lambda at: (-lasted[at], names[numbers[at]]))
            still = part[part[:, 5] > 0, 4]
            yield Incident(
                start_ms=int(part[0, 0]),
                end_ms=int(part[:, 1].max()),
                offset=int(part[0, 3]),
                is_open=len(still) > 0,
                stretches=len(part),
                partitions=len(numbers),
                open_partitions=len(np.unique(still)),
                worst=names[numbers[worst]],
                worst_ms=int(lasted[worst]),
                total_ms=int(lasted.sum()),
            )


def bursts(events: list[T], least: int, window_ms: int, time_of: Callable[[T], int]) -> Iterator[list[T]]:
    """Runs of at least `least` events. In a run, any `least` neighbors are within the window."""
    burst: list[T] = []
    for event in events:
        burst.append(event)
        if len(burst) >= least and time_of(event) - time_of(burst[-least]) <= window_ms:
            continue
        if len(burst) > least:
            yield burst[:-1]
            burst = burst[-least + 1 :]
        elif len(burst) == least:
            burst = burst[1:]
    if len(burst) >= least:
        yield burst
