"""Work that is deferred to the end of a driver's step, to do it once for everything in the step.

Owns when that is. Knows nothing of the work: it is a system call that wakes another thread or process, which
may take the processor at once.
"""

from __future__ import annotations

from typing import Protocol


class Flushed(Protocol):
    """An object that gathers work during a step."""

    def flush(self) -> None: ...


class StepEnd:
    """`gathers` is True during a step."""

    def __init__(self) -> None:
        self.gathers = False
        self._waiting: list[Flushed] = []

    def begin(self) -> None:
        """Called when a step begins."""
        self.gathers = True

    def add(self, gathered: Flushed) -> None:
        """Flushes `gathered` at the end of the step, once per call."""
        self._waiting.append(gathered)

    def come(self) -> None:
        """Called when the step has ended: flushes everything that was added."""
        self.gathers = False
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            each.flush()
