"""Which broken rules of which partitions were reported, by row, so that a log that breaks one repeatedly is
still replayed in columns.

Row addresses hold while no topic is created or deleted.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from metaquorum.metadata.image import TopicsImage
from metaquorum.metadata.inspect.walk.leaps import RULES, Broken

NEW, TOLD, COUNTED = 0, 1, 2
"""What to do if it recurs: look at it, nothing, count it."""


class ReportedRows:
    """Remembers, for a rule and a row, how its first occurrence was handled."""

    def __init__(self) -> None:
        self._topics: object = None
        self._states: npt.NDArray[np.uint8] = np.zeros((RULES, 0), dtype=np.uint8)

    def of(self, topics: TopicsImage, broken: Broken) -> npt.NDArray[np.uint8]:
        """The state of each, in order, as known before the first of them."""
        if self._topics is not topics.by_id:
            self._topics = topics.by_id
            self._states = np.zeros((RULES, topics.columns.row_limit), dtype=np.uint8)
        return self._states[broken.rules, broken.rows]

    def state(self, rule: int, row: int) -> int:
        """The current state of one."""
        return int(self._states[rule, row])

    def put(self, rule: int, row: int, state: int) -> None:
        self._states[rule, row] = state
