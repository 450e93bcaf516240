"""Turns of the active controller in their order, and requests that wait until it may take them.

Owns order and number. Does not decide or answer: the node decides which may go and answers refused ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from metaquorum.controller.active.outcome import Resumed, Step, Turn
from metaquorum.controller.events import RequestArrived


class TurnQueue:
    """`waiting_max`: requests that may wait while a new leader catches up, or hands leadership over."""

    def __init__(self, waiting_max: int) -> None:
        self._waiting_max = waiting_max
        self._turns: deque[Turn] = deque()
        self._waiting: deque[RequestArrived] = deque()

    def __bool__(self) -> bool:
        """Whether there is a turn to take now."""
        return bool(self._turns)

    def take(self) -> Turn:
        """The next turn."""
        return self._turns.popleft()

    def add(self, *turns: Turn) -> None:
        """Takes these after all others."""
        self._turns.extend(turns)

    def add_first(self, turns: Iterable[Turn]) -> None:
        """Takes these next, in this order."""
        self._turns.extendleft(reversed([*turns]))

    def postpone(self, arrived: RequestArrived) -> bool:
        """The request waits for `add_waiting`. Returns False if too many are already waiting."""
        if len(self._waiting) >= self._waiting_max:
            return False
        self._waiting.append(arrived)
        return True

    def add_waiting(self) -> None:
        """Requests that waited may be taken, after all others."""
        self._turns.extend(self._waiting)
        self._waiting.clear()

    def drop(self) -> list[int]:
        """Leadership is lost: keys of all requests that are here, waiting ones first."""
        keys = [arrived.key for arrived in self._waiting]
        for turn in self._turns:
            if not isinstance(turn, Step):
                keys.append(turn.arrived.key if isinstance(turn, Resumed) else turn.key)
        self._waiting.clear()
        self._turns.clear()
        return keys
