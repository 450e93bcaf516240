"""Recent use of a resource, measured as Kafka's quotas measure it (KIP-13)."""

from __future__ import annotations

from collections import deque

import msgspec


class QuotaWindows(msgspec.Struct, frozen=True, kw_only=True):
    """`count` windows of `window_ms` each: a rate is taken over all of them."""

    count: int = 11
    window_ms: int = 1_000


class Rate:
    """The amount used per window."""

    __slots__ = ("_samples", "_windows")

    def __init__(self, windows: QuotaWindows) -> None:
        self._windows = windows
        self._samples: deque[list[float]] = deque()

    def add(self, amount: float, now_ms: int) -> None:
        window_ms = self._windows.window_ms
        if not self._samples or now_ms - self._samples[-1][0] >= window_ms:
            self._samples.append([now_ms, 0.0])
        self._samples[-1][1] += amount
        while now_ms - self._samples[0][0] >= window_ms * self._windows.count:
            self._samples.popleft()

    def remove(self, amount: float) -> None:
        """Takes back an amount that was just added."""
        self._samples[-1][1] -= amount

    def room(self, bound: float, now_ms: int) -> float:
        """How much may be used now without a wait; negative if nothing may be used yet."""
        self.add(0, now_ms)
        return bound * self._span_ms(now_ms) / 1000 - sum(amount for _, amount in self._samples)

    def wait_ms(self, bound: float, now_ms: int) -> float:
        """The same as `over` when nothing is added."""
        self.add(0, now_ms)
        return self.over(max(bound, 1e-9), now_ms)

    def over(self, bound: float, now_ms: int) -> float:
        """How long, in ms, nothing may be used until the rate is down to the bound (per second); 0 if it is
        below.

        The span is that of Kafka's rates: at least all windows but the last, so that a client may use what it
        did not use before.
        """
        span_ms = self._span_ms(now_ms)
        rate = 1000 * sum(amount for _, amount in self._samples) / max(span_ms, 1)
        return 0.0 if rate <= bound else (rate - bound) / bound * span_ms

    def _span_ms(self, now_ms: int) -> float:
        window_ms = self._windows.window_ms
        elapsed_ms = now_ms - self._samples[0][0]
        missing = self._windows.count - 1 - elapsed_ms // window_ms
        return elapsed_ms + max(missing, 0) * window_ms
