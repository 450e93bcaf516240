"""How many connections a broker takes, in all and from one address."""

from __future__ import annotations

from collections import Counter


class ConnectionLimits:
    """Connections of all listeners of a process."""

    def __init__(self, *, max_connections: int, max_per_ip: int) -> None:
        self._max_connections = max_connections
        self._max_per_ip = max_per_ip
        self._by_address: Counter[str] = Counter()
        self._count = 0

    def refusal(self, address: str) -> str | None:
        """Why a connection from `address` is refused; None: it is taken, and counted from now on."""
        if self._count >= self._max_connections:
            return f"there are {self._count} connections, the most that max.connections allows"
        if self._by_address[address] >= self._max_per_ip:
            return (
                f"there are {self._by_address[address]} connections from {address}, the most that "
                "max.connections.per.ip allows"
            )
        self._by_address[address] += 1
        self._count += 1
        return None

    def closed(self, address: str) -> None:
        """A connection that was counted is gone."""
        self._count -= 1
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]
