"""Log lines about callers that connected to a node and were refused before any call: one per host and reason.

Owns which lines are repeated, and when, so that a client that retries does not fill the log. Does not detect
callers: `native_lines`, `runtime.plain_callers` and `runtime.kafka.tls_acceptor` do.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

_log = logging.getLogger(__name__)

AGAIN_S = 10.0
"""A line about a host is logged again after this time, with the number of times that it was omitted."""
REMEMBERED_MAX = 1_000


class RefusedCallers:
    """Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._told: dict[tuple[str, str], tuple[float, int]] = {}

    def tell(self, peer: str, text: str) -> None:
        """Logs `text` with `peer` (HOST:PORT) instead of {peer}, unless the same line was logged for this
        host within AGAIN_S."""
        key = peer.rpartition(":")[0], text
        with self._lock:
            now_s = self._clock()
            told_s, more = self._told.pop(key, (now_s - AGAIN_S, 0))
            if now_s - told_s < AGAIN_S:
                self._told[key] = told_s, more + 1
                return
            self._told[key] = now_s, 0
            if len(self._told) > REMEMBERED_MAX:
                del self._told[next(iter(self._told))]
        often = f" ({more} more times in the last {now_s - told_s:.0f} s)" if more else ""
        _log.warning("%s%s", text.replace("{peer}", peer), often)
