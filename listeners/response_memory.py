"""The memory of unsent responses, over all connections of a broker (`queued.max.response.bytes`).

At the bound, no fetch of a client begins; fetches in progress may read what is left (`Unsent.left`). Requests
of brokers do not wait, nor do requests other than fetches: so the bytes held exceed the bound by responses to
those, and by one batch. No fetch waits forever: meanwhile connections that take nothing of their responses
close, the largest first.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable

PATIENCE_S = 5.0
"""How long a fetch waits before connections that take nothing of their responses are closed."""


class Unsent:
    """See the module. `max_bytes` None: no bound."""

    def __init__(self, max_bytes: int | None = None) -> None:
        self._max_bytes = sys.maxsize if max_bytes is None else max_bytes
        self.held_bytes = 0
        self.line: dict[UnsentShare, float] = {}
        self.holders: dict[UnsentShare, None] = {}
        self._is_waking = False
        self._look: asyncio.TimerHandle | None = None

    def left(self) -> int:
        """The bytes that clients' fetches may read now."""
        return self._max_bytes - self.held_bytes

    def waits(self, share: UnsentShare) -> None:
        loop = asyncio.get_running_loop()
        self.line.setdefault(share, loop.time())
        if self._look is None:
            self._look = loop.call_later(PATIENCE_S, self._look_for_stalled)

    def freed(self) -> None:
        """Bytes have left: wakes waiting fetches in the next turn of the loop."""
        if self.line and not self._is_waking and self.left() > 0:
            self._is_waking = True
            asyncio.get_running_loop().call_soon(self._wake)

    def _wake(self) -> None:
        self._is_waking = False
        line, self.line = self.line, {}
        for share in line:
            share.wake()

    def _look_for_stalled(self) -> None:
        self._look = None
        loop = asyncio.get_running_loop()
        since_s = loop.time() - PATIENCE_S
        if self.line and next(iter(self.line.values())) <= since_s:
            stalled = [share for share in self.holders if share.moved_s <= since_s]
            stalled.sort(key=lambda share: share.held_bytes, reverse=True)
            for share in stalled:
                if self.left() > 0:
                    break
                share.late()
        if self.line:
            self._look = loop.call_later(PATIENCE_S / 5, self._look_for_stalled)


class UnsentShare:
    """The unsent bytes of one connection. `wake` is called when a waiting fetch may begin, `late` if the
    client took nothing while others waited."""

    def __init__(self, unsent: Unsent, wake: Callable[[], None], late: Callable[[], None]) -> None:
        self._unsent = unsent
        self.wake, self.late = wake, late
        self.held_bytes, self.moved_s = 0, 0.0

    def may_fetch(self) -> bool:
        """True if a client's fetch may begin now; if not, `wake` is called later."""
        unsent = self._unsent
        if unsent.left() > 0:
            return True
        unsent.waits(self)
        return False

    def add(self, size: int) -> None:
        """A response of `size` bytes is ready."""
        if not self.held_bytes:
            self.moved_s = asyncio.get_running_loop().time()
            self._unsent.holders[self] = None
        self.held_bytes += size
        self._unsent.held_bytes += size

    def sent(self, size: int) -> None:
        """`size` bytes have left."""
        unsent = self._unsent
        self.held_bytes -= size
        unsent.held_bytes -= size
        if not self.held_bytes:
            unsent.holders.pop(self, None)
        elif size:
            self.moved_s = asyncio.get_running_loop().time()
        if unsent.line:
            unsent.freed()

    def close(self) -> None:
        """The connection has closed: frees everything that it held."""
        self._unsent.line.pop(self, None)
        self.wake = self.late = _nothing
        self.sent(self.held_bytes)


def _nothing() -> None:
    return
