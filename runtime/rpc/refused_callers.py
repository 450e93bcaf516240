"""Who connected to a node and was refused before any call: one line for each host and reason.

Owns which lines are logged again, and when. A client that tries again and again must not fill the log.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

_log = logging.getLogger(__name__)

AGAIN_S = 10.0
"""After this time a line about a host is logged again, with the number of times it was left out."""
REMEMBERED_MAX = 1_000


class RefusedCallers:
    """Threads may share it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._told: dict[tuple[str, str], tuple[float, int]] = {}

    def tell(self, peer: str, text: str) -> None:
        """Logs `text` with `peer` (HOST:PORT) instead of {peer}, unless the same was said of this host
        in the last AGAIN_S."""
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
