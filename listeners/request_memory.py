"""The memory that the requests of one listener take, over all its connections (`queued.max.request.bytes`).

A partial frame counts with the memory allocated for it, which grows with the bytes that have arrived. A
complete one counts with its length until the response. Long frames, which do not fit into one read, have
three quarters of the bound, short ones the rest: heartbeats, joins and followers' fetches do not wait for
large produces. If there is no room, a connection reads only the length of its next frame and waits for its
turn. The bytes held never exceed the bound, except for these few per connection.

Why no connection waits forever: a frame only continues if all its missing bytes fit. So there is always an
order in which the frames that have begun can be received completely, each in the room that the earlier ones
leave: a frame that continues could be the first in this order, and each budget holds the longest frame of its
kind. After PATIENCE_S, a waiting frame is overtaken by no frame that has not begun, and frames of clients
that send nothing meanwhile are cut off, the largest first. Complete frames are in progress and end within
their own time limit: members of a group wait for each other by short frames, a produce for followers, which
leave the ISR if they stop fetching. Budgets are per listener: brokers with a listener of their own never wait
for clients.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from metaquorum.network.framing import SCRATCH_BYTES

SHORT_MAX_BYTES = SCRATCH_BYTES - 4
"""The longest frame that fits into one read together with its length field."""
SHORT_BUDGET_MIN_BYTES = 4 * SCRATCH_BYTES
"""The least room for short frames: `queued.max.request.bytes` exceeds the largest request by this much."""
PATIENCE_S = 2.0
"""How long a frame waits before stalled frames of other connections are cut off."""
HELD_BACK_PATIENCE_S = 30.0
"""The same for frames of connections that are not read for another reason than memory."""
FEW_BYTES = 4
"""This many bytes read of a frame without room for it do not count."""
SLOW_BYTES_PER_S = 16 * 1024
"""A frame that arrives more slowly than this is stalled."""


class _Budget:
    """Bytes of one kind of frame. `max_bytes` None: no bound. `line`: the waiting connections, and since
    when."""

    def __init__(self, max_bytes: int | None) -> None:
        self.max_bytes = max_bytes
        self.held_bytes = 0
        self.line: dict[Share, float] = {}

    def fits(self, size: int) -> bool:
        return self.max_bytes is None or self.held_bytes + size <= self.max_bytes

    def waited_s(self, now_s: float) -> float:
        """How long the first connection in line has waited."""
        return now_s - next(iter(self.line.values()), now_s)


class RequestMemory:
    """See the module. `max_bytes` None: no bound."""

    def __init__(self, max_bytes: int | None = None, request_max_bytes: int = 0) -> None:
        long_max = None if max_bytes is None else max(max_bytes * 3 // 4, request_max_bytes)
        if max_bytes is not None and long_max is not None:
            long_max = min(long_max, max_bytes - SHORT_BUDGET_MIN_BYTES)
        self.long = _Budget(long_max)
        self.short = _Budget(None if max_bytes is None or long_max is None else max_bytes - long_max)
        self._receiving: dict[Share, None] = {}
        """Connections with a partial frame."""
        self._is_waking = False
        self._looked_s = 0.0
        self._look: asyncio.TimerHandle | None = None

    @property
    def held_bytes(self) -> int:
        return self.long.held_bytes + self.short.held_bytes

    @property
    def waiting(self) -> int:
        """Connections that wait for memory."""
        return len(self.long.line) + len(self.short.line)

    def budget(self, size: int) -> _Budget:
        return self.long if size > SHORT_MAX_BYTES else self.short

    def begins(self, share: Share) -> None:
        if share not in self._receiving:
            share.moved_s = asyncio.get_running_loop().time()
            self._receiving[share] = None

    def arrived(self, share: Share) -> None:
        self._receiving.pop(share, None)

    def may_continue(self, share: Share, budget: _Budget) -> bool:
        """True if all missing bytes of the frame fit and it is its turn."""
        if not budget.fits(share.missing(budget)):
            return False
        if not budget.line or share.has_begun(budget) or next(iter(budget.line)) is share:
            return True
        return budget.waited_s(asyncio.get_running_loop().time()) < PATIENCE_S

    def waits(self, share: Share, budget: _Budget) -> None:
        """Queues `share`, and calls its `proceed` when it is its turn."""
        loop = asyncio.get_running_loop()
        budget.line.setdefault(share, loop.time())
        if self._look is None:
            self._looked_s = loop.time()
            for each in self._receiving:
                each.filled_bytes = 0
            self._look = loop.call_later(PATIENCE_S / 4, self._look_for_stalled)

    def left(self, share: Share) -> None:
        """Its connection has closed."""
        for budget in (self.long, self.short):
            budget.line.pop(share, None)
        self.arrived(share)

    def freed(self) -> None:
        """Bytes are free: wakes waiting connections in the next turn of the loop."""
        if (self.long.line or self.short.line) and not self._is_waking:
            self._is_waking = True
            asyncio.get_running_loop().call_soon(self._wake)

    def _wake(self) -> None:
        self._is_waking = False
        for budget in (self.long, self.short):
            for share in list(budget.line):
                if share in budget.line and self.may_continue(share, budget):
                    share.proceed()

    def _look_for_stalled(self) -> None:
        """If a frame has waited for too long, cuts off stalled frames until the waiting one fits."""
        self._look = None
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        enough, self._looked_s = (now_s - self._looked_s) * SLOW_BYTES_PER_S, now_s
        for share in self._receiving:
            share.look(now_s, enough)
        for budget in (self.long, self.short):
            if budget.waited_s(now_s) < PATIENCE_S:
                continue
            first = next(iter(budget.line))
            stalled = [each for each in self._receiving if each.is_stalled(budget, now_s)]
            stalled.sort(key=lambda each: each.partial_bytes, reverse=True)
            for share in stalled:
                if budget.fits(first.missing(budget)):
                    break
                share.is_late()
        if self.waiting:
            self._look = loop.call_later(PATIENCE_S / 4, self._look_for_stalled)


class Share:
    """The bytes of one connection, and the gate of its frames. `wake` is called when its next frame may
    continue, `late` if the frame arrived too slowly while others waited."""

    def __init__(self, memory: RequestMemory, wake: Callable[[], None], late: Callable[[], None]) -> None:
        self._memory = memory
        self._wake = wake
        self.is_late = late
        self.is_held_back = False
        """True while the connection is not read for another reason than memory."""
        self.moved_s, self.filled_bytes = 0.0, 0
        """The time of the frame's last progress, and the bytes received since the last check."""
        self.partial_bytes, self._partial_budget = 0, memory.short
        """The counted bytes of the partial frame, and their budget."""
        self._whole: dict[_Budget, int] = {}
        self._length = self._wanted = 0
        """The length of the waiting frame, and how many of its bytes need room."""
        self._is_granted = False

    @property
    def has_room(self) -> bool:
        """True if another read of SCRATCH_BYTES of short frames fits and no connection waits. If the read
        ends in a frame that must wait, its bytes are held meanwhile, for one frame of each kind: other
        connections then read lengths only."""
        memory, short = self._memory, self._memory.short
        if memory.long.line or short.line:
            return False
        return short.max_bytes is None or short.held_bytes + SCRATCH_BYTES <= short.max_bytes

    def has_begun(self, budget: _Budget) -> bool:
        """True if it holds bytes of a partial frame in this budget."""
        return self.partial_bytes > 0 and self._partial_budget is budget

    def missing(self, budget: _Budget) -> int:
        """The bytes that the waiting frame needs beyond those already counted."""
        return self._length - (self.partial_bytes if self._partial_budget is budget else 0)

    def reserve(self, length: int, wanted: int) -> bool:
        """True if there is room for the first `wanted` bytes of a frame of `length`; if not, `wake` is called
        later."""
        if self._is_granted:
            self._is_granted = False
            return True
        memory, budget = self._memory, self._memory.budget(length)
        self._length, self._wanted = length, wanted
        if not memory.may_continue(self, budget):
            memory.waits(self, budget)
            return False
        budget.line.pop(self, None)
        self._count_partial(wanted, budget)
        memory.begins(self)
        return True

    def proceed(self) -> None:
        """Called when it is its turn and there is room."""
        if self.reserve(self._length, self._wanted):
            self._is_granted, self.moved_s = True, asyncio.get_running_loop().time()
            self._wake()

    def keeps(self, size: int) -> None:
        """`size` bytes of a frame were read before there was room for it."""
        if size - self.partial_bytes > FEW_BYTES:
            self.filled_bytes += size - self.partial_bytes
            self._count_partial(size, self._memory.short)
            self._memory.begins(self)

    def filled(self, size: int) -> None:
        """`size` more bytes of a frame arrived that had room."""
        self.filled_bytes += size

    def look(self, now_s: float, enough: float) -> None:
        """Notes progress if `enough` bytes have arrived since the last check; a waiting frame needs none."""
        memory = self._memory
        waits = self in memory.long.line or self in memory.short.line
        if waits or self.filled_bytes >= enough:
            self.moved_s = now_s
        self.filled_bytes = 0

    def is_stalled(self, budget: _Budget, now_s: float) -> bool:
        patience_s = HELD_BACK_PATIENCE_S if self.is_held_back else PATIENCE_S
        return self._partial_budget is budget and now_s - self.moved_s >= patience_s

    def _count_partial(self, size: int, budget: _Budget) -> None:
        self._partial_budget.held_bytes -= self.partial_bytes
        budget.held_bytes += size
        self.partial_bytes, self._partial_budget = size, budget

    def arrived(self, size: int) -> None:
        """A frame is complete; it counts until `answered`."""
        if self.partial_bytes:
            self._memory.arrived(self)
            self._count_partial(0, self._memory.short)
        memory = self._memory
        budget = memory.short if size <= SHORT_MAX_BYTES else memory.long
        budget.held_bytes += size
        self._whole[budget] = self._whole.get(budget, 0) + size

    def answered(self, size: int) -> None:
        """The request of `size` bytes is no longer in progress."""
        memory = self._memory
        budget = memory.short if size <= SHORT_MAX_BYTES else memory.long
        budget.held_bytes -= size
        self._whole[budget] -= size
        if memory.long.line or memory.short.line:
            memory.freed()

    def move_to(self, memory: RequestMemory) -> None:
        """What the connection holds counts in another memory from now on, even beyond its bound."""
        old = self._memory
        if memory is old:
            return
        waits = self in old.long.line or self in old.short.line
        is_long, size = self._partial_budget is old.long, self.partial_bytes
        whole = [(budget is old.long, held) for budget, held in self._whole.items()]
        self._release()
        old.freed()
        self._memory = memory
        self._count_partial(size, memory.long if is_long else memory.short)
        if size:
            memory.begins(self)
        for was_long, held in whole:
            budget = memory.long if was_long else memory.short
            budget.held_bytes += held
            self._whole[budget] = held
        if waits:
            memory.waits(self, memory.budget(self._length))
            memory.freed()

    def _release(self) -> None:
        self._count_partial(0, self._memory.short)
        for budget, size in self._whole.items():
            budget.held_bytes -= size
        self._whole = {}
        self._memory.left(self)

    def close(self) -> None:
        """The connection has closed: frees everything that it held."""
        self._release()
        self._wake = self.is_late = _nothing
        self._memory.freed()


def _nothing() -> None:
    return
