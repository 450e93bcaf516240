"""Where the effects of a state machine gather until its input ends.

Each state machine has one outbox: its parts are given it when they are made and append to it, and every
input ends with `take`. So effects leave in one way and in the order in which they came to be.
"""

from __future__ import annotations

from typing import TypeVar

E = TypeVar("E")


class Outbox(list[E]):
    """A list that is emptied when an input ends."""

    def offer(self, effect: E | None) -> None:
        """Appends an effect, if there is one."""
        if effect is not None:
            self.append(effect)

    def take(self) -> list[E]:
        """All effects, in order; the outbox is empty then."""
        taken = self[:]
        self.clear()
        return taken
