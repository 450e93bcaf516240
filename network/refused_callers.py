"""Log lines about callers that were refused before any call: one per host and reason.

Repeated lines are held back, so that neither a client that retries nor many that attack fill the log.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable

_log = logging.getLogger(__name__)

AGAIN_S = 10.0
"""A line about a host is logged again after this time, with the number of times that it was omitted."""
REMEMBERED_MAX = 1_000
LINES_MAX = 6
"""The most lines within AGAIN_S about all hosts; what else happens meanwhile is counted."""

_DETAIL = re.compile(r"'[^']*'|\"[^\"]*\"|-?\d[\d.,]*")


def kind_of(text: str) -> str:
    """The text without its numbers and quotations: lines of one kind are repeated."""
    return _DETAIL.sub("#", text)


class RefusedCallers:
    """Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._logged: dict[tuple[str, str], tuple[float, int]] = {}
        self._began_s, self._lines, self._suppressed = clock() - AGAIN_S, 0, 0

    def log(self, peer: str, text: str, kind: str | None = None) -> None:
        """Logs `text` with `peer` (HOST:PORT) instead of {peer}, unless the same line, or one of the same
        `kind`, was logged for this host within AGAIN_S, or LINES_MAX others were."""
        key = peer.rpartition(":")[0], kind or text
        with self._lock:
            now_s = self._clock()
            logged_s, more = self._logged.pop(key, (now_s - AGAIN_S, 0))
            if now_s - logged_s < AGAIN_S:
                self._logged[key] = logged_s, more + 1
                return
            if now_s - self._began_s >= AGAIN_S:
                self._began_s, self._lines = now_s, 0
            if self._lines >= LINES_MAX:
                self._suppressed += 1
                return
            self._lines += 1
            untold, self._suppressed = self._suppressed, 0
            self._logged[key] = now_s, 0
            if len(self._logged) > REMEMBERED_MAX:
                del self._logged[next(iter(self._logged))]
        often = f" ({more} more times in the last {now_s - logged_s:.0f} s)" if more else ""
        others = f" ({untold} lines about others are left out)" if untold else ""
        _log.warning("%s%s%s", text.replace("{peer}", peer), often, others)
