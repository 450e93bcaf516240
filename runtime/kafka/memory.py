"""The memory that the requests of one listener take, over all its connections (`queued.max.request.bytes`).

Owns the budgets and the lines before them. A frame counts with the length that it announces, from the moment
it may be received until it is answered. Long frames, which do not fit into one read, have three quarters of
the bound, short ones the rest: heartbeats, joins and followers' fetches do not wait for large produces. At
the bound, a connection is read no further than the length of its next frame, and waits for its turn. The
bytes held never exceed the bound but for these lengths. Answers, and what TLS has read ahead, do not count.

Why no connection waits forever: one that waits holds nothing but what one read had brought, and the first in
line fits once the others have gone, since each budget holds the longest frame of its kind. One that has a
place needs no more to be received whole; if it is not within PATIENCE_S while others wait, it ends. What is
whole is under way, and ends within its own time limit: a group's members wait for each other by short frames,
a produce for followers, which leave the ISR when they are not heard. Budgets are by listener: brokers with a
listener of their own wait for no client at all.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from metaquorum.runtime.sockets.framing import SCRATCH_BYTES

SHORT_MAX_BYTES = SCRATCH_BYTES - 4
"""The longest frame that fits into one read, with its length."""
SHORT_BUDGET_MIN_BYTES = 4 * SCRATCH_BYTES
"""What is left to short frames, at least: `queued.max.request.bytes` is larger than one request by this."""
PATIENCE_S = 30.0
"""How long a frame may take to arrive while others wait: producers give up after the same time by default."""


class _Budget:
    """Bytes of one kind of frames. `max_bytes` None: no bound."""

    def __init__(self, max_bytes: int | None) -> None:
        self.max_bytes = max_bytes
        self.held_bytes = 0
        self.waiting: deque[Share] = deque()

    def fits(self, size: int) -> bool:
        return self.max_bytes is None or self.held_bytes + size <= self.max_bytes


class RequestMemory:
    """See the module. `max_bytes` None: no bound."""

    def __init__(self, max_bytes: int | None = None, request_max_bytes: int = 0) -> None:
        long_max = None if max_bytes is None else max(max_bytes * 3 // 4, request_max_bytes)
        if max_bytes is not None and long_max is not None:
            long_max = min(long_max, max_bytes - SHORT_BUDGET_MIN_BYTES)
        self.long = _Budget(long_max)
        self.short = _Budget(None if max_bytes is None or long_max is None else max_bytes - long_max)
        self._receiving: dict[Share, float] = {}
        """Frames that have a place and are not whole, and since when."""
        self._is_waking = False
        self._patience: asyncio.TimerHandle | None = None

    @property
    def held_bytes(self) -> int:
        return self.long.held_bytes + self.short.held_bytes

    @property
    def waiting(self) -> int:
        """Connections that wait for memory."""
        return len(self.long.waiting) + len(self.short.waiting)

    def budget(self, size: int) -> _Budget:
        return self.long if size > SHORT_MAX_BYTES else self.short

    def begins(self, share: Share) -> None:
        self._receiving.setdefault(share, asyncio.get_running_loop().time())

    def arrived(self, share: Share) -> None:
        self._receiving.pop(share, None)

    def waits(self, share: Share, budget: _Budget) -> None:
        """`share` is told when it is its turn."""
        if share not in budget.waiting:
            budget.waiting.append(share)
        if self._patience is None:
            self._patience = asyncio.get_running_loop().call_later(PATIENCE_S, self._lose_patience)

    def left(self, share: Share) -> None:
        """Its connection is gone."""
        for budget in (self.long, self.short):
            if share in budget.waiting:
                budget.waiting.remove(share)
        self.arrived(share)

    def freed(self) -> None:
        """Some bytes are: those who wait are asked, once the present work is done."""
        if (self.long.waiting or self.short.waiting) and not self._is_waking:
            self._is_waking = True
            asyncio.get_running_loop().call_soon(self._wake)

    def _wake(self) -> None:
        self._is_waking = False
        for budget in (self.long, self.short):
            while budget.waiting and budget.waiting[0].goes_on():
                pass
        if not self.waiting and self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _lose_patience(self) -> None:
        self._patience = None
        loop = asyncio.get_running_loop()
        late = [share for share, since in self._receiving.items() if loop.time() - since >= PATIENCE_S]
        for share in late:
            share.is_late()
        if self.waiting:
            self._patience = loop.call_later(PATIENCE_S / 10, self._lose_patience)


class Share:
    """What one connection holds: the gate of its frames. `wake` is called when its next frame may be
    received, `late` when it came too slowly while others waited."""

    def __init__(self, memory: RequestMemory, wake: Callable[[], None], late: Callable[[], None]) -> None:
        self._memory = memory
        self._wake = wake
        self.is_late = late
        self._partial, self._partial_budget = 0, memory.short
        """What counts of the frame that is not whole, and where."""
        self._whole: dict[_Budget, int] = {}
        self._wanted = 0
        """The length of the frame that waits for its place; 0: none does."""

    @property
    def has_room(self) -> bool:
        """Whether one more read of SCRATCH_BYTES of short frames fits, and no one waits. What it brings of a
        frame that has to wait is held meanwhile, of one frame of each kind: others then read lengths only."""
        memory, short = self._memory, self._memory.short
        if memory.long.waiting or short.waiting:
            return False
        return short.max_bytes is None or short.held_bytes + SCRATCH_BYTES <= short.max_bytes

    def reserve(self, length: int) -> bool:
        """Whether a frame that announces `length` bytes may be received now; if not, `wake` is called."""
        memory, budget = self._memory, self._memory.budget(length)
        is_first = not budget.waiting or budget.waiting[0] is self
        if not (is_first and budget.fits(length)):
            self._wanted = length
            memory.waits(self, budget)
            return False
        if budget.waiting and budget.waiting[0] is self:
            budget.waiting.popleft()
        self._wanted = 0
        self._count_partial(length, budget)
        memory.begins(self)
        return True

    def goes_on(self) -> bool:
        """It is first in line: whether there is room now."""
        if not self.reserve(self._wanted):
            return False
        self._wake()
        return True

    def keeps(self, size: int) -> None:
        """`size` bytes of a frame without a place were read already."""
        self._count_partial(size, self._memory.short)

    def _count_partial(self, size: int, budget: _Budget) -> None:
        self._partial_budget.held_bytes -= self._partial
        budget.held_bytes += size
        self._partial, self._partial_budget = size, budget

    def arrived(self, size: int) -> None:
        """A frame is whole; it counts until it is `answered`."""
        if self._partial:
            self._memory.arrived(self)
            self._count_partial(0, self._memory.short)
        memory = self._memory
        budget = memory.short if size <= SHORT_MAX_BYTES else memory.long
        budget.held_bytes += size
        self._whole[budget] = self._whole.get(budget, 0) + size

    def answered(self, size: int) -> None:
        """A frame of `size` bytes is no longer under way."""
        memory = self._memory
        budget = memory.short if size <= SHORT_MAX_BYTES else memory.long
        budget.held_bytes -= size
        self._whole[budget] -= size
        if memory.long.waiting or memory.short.waiting:
            memory.freed()

    def close(self) -> None:
        """The connection is gone, and all that it held."""
        self._count_partial(0, self._memory.short)
        for budget, size in self._whole.items():
            budget.held_bytes -= size
        self._whole = {}
        self._wake = self.is_late = _nothing
        self._memory.left(self)
        self._memory.freed()


def _nothing() -> None:
    return
