"""How long to wait before a retry: exponential, with jitter, bounded.

Randomness is injected, so that tests and the simulator can fix it.
"""

from __future__ import annotations

import random

import msgspec


class BackoffPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The first wait, its growth from one failure to the next, and the longest wait; `jitter` is a fraction
    of the wait."""

    initial_ms: int = 20
    multiplier: float = 2.0
    max_ms: int = 1000
    jitter: float = 0.2

    def delay_ms(self, failures: int, rng: random.Random) -> int:
        """The wait in ms after `failures` consecutive failures, within `jitter` of the nominal one; at least
        1."""
        exponent = min(max(failures, 1) - 1, 32)
        nominal = min(self.initial_ms * self.multiplier**exponent, float(self.max_ms))
        spread = nominal * self.jitter
        return max(1, round(nominal + rng.uniform(-spread, spread)))


class Backoff:
    """Counts failures of one target and computes when to retry, on the caller's clock."""

    __slots__ = ("_failures", "_not_before_ms", "_policy", "_rng")

    def __init__(self, policy: BackoffPolicy, rng: random.Random) -> None:
        self._policy = policy
        self._rng = rng
        self._failures = 0
        self._not_before_ms = 0

    def failed(self, now_ms: int) -> int:
        """Notes one more failure; returns the wait in ms until the next attempt."""
        self._failures += 1
        delay = self._policy.delay_ms(self._failures, self._rng)
        self._not_before_ms = now_ms + delay
        return delay

    def succeeded(self) -> None:
        """Starts over: after the next failure the wait is the first one again."""
        self._failures = 0
        self._not_before_ms = 0

    def remaining_ms(self, now_ms: int) -> int:
        """The remaining wait in ms; 0: retry now."""
        return max(0, self._not_before_ms - now_ms)
