"""Who goes next: those who come take a place in line, and each has its turn when it is the first.

Owns the order, and nothing of what someone does between taking a place and leaving it. The first leaves when
it is done, anyone else when he gives up.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict


class Turn:
    """Someone's place in the line."""

    __slots__ = ("_called",)

    def __init__(self) -> None:
        self._called: asyncio.Future[None] | None = None

    def call(self) -> None:
        """It is the first now."""
        if self._called is not None and not self._called.done():
            self._called.set_result(None)

    async def wait(self) -> None:
        """Until `call`."""
        self._called = asyncio.get_running_loop().create_future()
        await self._called


class Turns:
    """One line."""

    __slots__ = ("_line",)

    def __init__(self) -> None:
        self._line: OrderedDict[Turn, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._line)

    def take(self) -> Turn:
        """The last place."""
        place = Turn()
        self._line[place] = None
        return place

    async def reach(self, place: Turn) -> None:
        """Returns when everyone who came before has left."""
        if self._first() is not place:
            await place.wait()

    def leave(self, place: Turn) -> None:
        """A caller behind the first has the next turn."""
        del self._line[place]
        if self._line:
            self._first().call()

    def _first(self) -> Turn:
        return next(iter(self._line))
