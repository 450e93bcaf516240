"""A broker's lease: until when it may serve without another answer of the active controller (S2.17-S2.19).

The broker counts its lease from the time at which it *sent* the last heartbeat that was answered, the
controller counts its session from the time at which that heartbeat *arrived*. The first is never later, so
with clocks of equal speed a broker has stopped serving before the controller fences it.
"""

from __future__ import annotations

from metaquorum.metadata.node_configs.broker import BrokerConfig

FOREVER_MS = 2**63 - 1


class Lease:
    """`end_ms`: when it ends. None if there is no lease: the broker is not registered, or its lease ended and
    it does not fence itself (broker.self.fencing.enable=false)."""

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self.end_ms: int | None = None

    def renew(self, now_ms: int, *, sent_ms: int, session_timeout_ms: int) -> bool:
        """Takes the lease granted by the answer to a request sent at `sent_ms`. Returns False if it has
        expired."""
        end_ms = sent_ms + min(session_timeout_ms, self._config.registration_lease_timeout_ms)
        if end_ms > now_ms:
            self.end_ms = end_ms
            return True
        if self._config.self_fencing_enable:
            return False
        self.end_ms = None  # late, but as good as any other answer for a broker without a lease
        return True

    def drop(self) -> None:
        self.end_ms = None

    @property
    def serves_before_ms(self) -> int:
        """The time until which it allows the broker to serve."""
        if not self._config.self_fencing_enable:
            return FOREVER_MS
        return 0 if self.end_ms is None else self.end_ms

    def has_ended(self, now_ms: int) -> bool:
        return self.end_ms is not None and now_ms >= self.end_ms
