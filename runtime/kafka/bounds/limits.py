"""How many connections a broker accepts: in total, from one address, and at one listener.

Owns the counts. Does not close a connection: the listener does. The brokers' listener, if it is not the only
one, accepts connections at the limit too: for each, a connection of another listener closes (as in Kafka), so
that clients cannot block replication.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping


class ConnectionLimits:
    """Connections of all listeners of a process. `protected`: the brokers' listener, None if it is the only
    one. `by_listener`: limits of single listeners."""

    def __init__(
        self,
        *,
        max_connections: int,
        max_per_ip: int,
        protected: str | None = None,
        by_listener: Mapping[str, int] | None = None,
    ) -> None:
        self._max_connections = max_connections
        self._max_per_ip = max_per_ip
        self._protected = protected
        self._by_listener = by_listener or {}
        self._by_address: Counter[str] = Counter()
        self._open: Counter[str] = Counter()

    def refusal(self, listener: str, address: str) -> str | None:
        """Why a connection from `address` is refused; None if it is accepted, and counted from now on."""
        count, most = self._open.total(), self._by_listener.get(listener)
        if most is not None and self._open[listener] >= most:
            key = f"listener.name.{listener.lower()}.max.connections"
            return f"there are {most} connections to this listener, the most that {key} allows"
        if count >= self._max_connections and listener != self._protected:
            return f"there are {count} connections, the most that max.connections allows"
        if self._by_address[address] >= self._max_per_ip:
            return (
                f"there are {self._by_address[address]} connections from {address}, the most that "
                "max.connections.per.ip allows"
            )
        self._by_address[address] += 1
        self._open[listener] += 1
        return None

    @property
    def is_exceeded(self) -> bool:
        """True if a connection must close to make room."""
        return self._open.total() > self._max_connections

    def may_end(self, listener: str) -> bool:
        """True if connections of this listener may close to make room."""
        return listener != self._protected

    def closed(self, listener: str, address: str) -> None:
        """Removes a closed connection from the counts."""
        self._open[listener] -= 1
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]
