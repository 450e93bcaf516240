"""What is put off to the end of a driver's step, so that it is done once for all that the step brings.

Owns when that is. Knows nothing of what is done then: a system call that wakes another thread or process,
which may take the processor at once.
"""

from __future__ import annotations

from typing import Protocol


class Flushed(Protocol):
    """Something that gathers while a step is taken."""

    def flush(self) -> None: ...


class StepEnd:
    """`gathers`: a step is being taken."""

    def __init__(self) -> None:
        self.gathers = False
        self._waiting: list[Flushed] = []

    def begin(self) -> None:
        """A step begins."""
        self.gathers = True

    def add(self, gathered: Flushed) -> None:
        """`gathered` is flushed when the step has ended, once for each time it is added."""
        self._waiting.append(gathered)

    def come(self) -> None:
        """The step has ended."""
        self.gathers = False
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            each.flush()
