"""Where a state machine collects its effects until its input ends.

Owns the order of effects: each state machine has one outbox, its parts receive it when they are created and
append to it, and every input ends with `take`. So effects leave in one way only, in the order in which they
were added. Does not know what an effect is.
"""

from __future__ import annotations

from typing import TypeVar

E = TypeVar("E")


class Outbox(list[E]):
    """A list that is emptied when an input ends."""

    def offer(self, effect: E | None) -> None:
        """Appends an effect if there is one."""
        if effect is not None:
            self.append(effect)

    def take(self) -> list[E]:
        """Returns all effects, in order, and empties the outbox."""
        taken = self[:]
        self.clear()
        return taken
