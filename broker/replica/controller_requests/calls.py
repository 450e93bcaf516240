"""Requests of one kind to the active controller: one in flight, sent again with backoff.

Owns where the next request goes and when. Knows no request's content.
"""

from __future__ import annotations

import random

from metaquorum.metadata.errors import ApiError, ErrorCode

RETRY_BACKOFF_MS = 50
RETRY_BACKOFF_MAX_MS = 1_000
REPORT_GRACE_MS = 1_000
"""A request without a report for this long after its timeout counts as lost."""


class ControllerCall:
    """The state of one kind of request. `correlation_id` None: nothing is in flight."""

    def __init__(self, rng: random.Random, timeout_ms: int) -> None:
        self._rng = rng
        self.timeout_ms = timeout_ms
        self.target: int | None = None
        self.correlation_id: int | None = None
        self.failures = 0
        self._retry_ms = 0
        self._lost_ms = 0

    def is_ready(self, now_ms: int) -> bool:
        """Whether a request may be sent now."""
        return self.correlation_id is None and now_ms >= self._retry_ms

    def sent(self, correlation_id: int, now_ms: int) -> None:
        self.correlation_id = correlation_id
        self._lost_ms = now_ms + self.timeout_ms + REPORT_GRACE_MS

    def is_lost(self, now_ms: int) -> bool:
        return self.correlation_id is not None and now_ms >= self._lost_ms

    def succeeded(self) -> None:
        self.correlation_id = None
        self.failures = 0
        self._retry_ms = 0

    def failed(self, now_ms: int, error: ApiError | None = None) -> None:
        """No useful answer. The first time that a controller names the active one, it is followed at once."""
        self.correlation_id = None
        self.failures += 1
        self.target = None
        if error is not None and error.code is ErrorCode.NOT_CONTROLLER:
            self.target = error.leader_hint
            if self.failures == 1 and self.target is not None:
                self._retry_ms = now_ms
                return
        self.back_off(now_ms)

    def back_off(self, now_ms: int) -> None:
        """Sends nothing for a while, which grows with consecutive failures."""
        bound = min(RETRY_BACKOFF_MAX_MS, RETRY_BACKOFF_MS << min(max(self.failures - 1, 0), 10))
        self._retry_ms = now_ms + max(1, bound - self._rng.randrange(bound // 2 + 1))

    def next_deadline_ms(self, *, waits: bool) -> int | None:
        """When to look again; `waits`: there is something to send."""
        if self.correlation_id is not None:
            return self._lost_ms
        return self._retry_ms if waits else None
