"""How many connections a process accepts: in total, from one address, at one listener, and before a login.

A connection is *new* until its client is known: by TLS and login, or, where the listener asks for neither,
by a first complete request. New ones have a small budget. At its bound the oldest of the address that has
most of them makes room, so that clients that send nothing keep no other out. The brokers' listener, if it
is not the only one, accepts connections at the limit too: for each, a connection of another listener closes
(as in Kafka), so that clients cannot block replication.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

UNLIMITED = 2**31 - 1
FILES = "the limit of open files leaves (ulimit -n)"
REPLACED = "it was not logged in yet, and makes room for another (max.connections.unauthenticated)"
BROKERS_MORE = 16
"""How many connections beyond the limit of open files brokers may have while clients' connections close."""


class ConnectionSlot:
    """The place of one connection. `end` closes it, given the reason; its owner sets it."""

    __slots__ = ("_limits", "address", "end", "listener")

    def __init__(self, limits: ConnectionLimits, listener: str, address: str) -> None:
        self._limits = limits
        self.listener, self.address = listener, address
        self.end: Callable[[str], None] = _nothing

    def known(self) -> None:
        """The client is known from now on: the connection is not new any longer."""
        self._limits.known(self)

    def leave(self) -> None:
        """The connection has closed; a second call does nothing."""
        self._limits.left(self)


class ConnectionLimits:
    """Connections of some listeners of a process. `protected`: the brokers' listener, None if it is the only
    one. `by_listener`: limits of single listeners. `overrides`: limits of single addresses. `files_max`: what
    the limit of open files leaves. `new_max`: for new connections."""

    def __init__(
        self,
        *,
        max_connections: int = UNLIMITED,
        max_per_ip: int = UNLIMITED,
        protected: str | None = None,
        by_listener: Mapping[str, int] | None = None,
        overrides: Mapping[str, int] | None = None,
        files_max: int = UNLIMITED,
        new_max: int = UNLIMITED,
    ) -> None:
        self._max_connections, self._files_max = max_connections, files_max
        self._max_per_ip = max_per_ip
        self._overrides = overrides or {}
        self._protected = protected
        self._by_listener = by_listener or {}
        self._new_max = new_max
        self._by_address: Counter[str] = Counter()
        self._open: Counter[str] = Counter()
        self._places: set[ConnectionSlot] = set()
        self._new: dict[str, dict[ConnectionSlot, None]] = {}
        self._new_count = 0

    def admit(self, listener: str, address: str) -> ConnectionSlot | str:
        """A slot for a connection, counted from now on; a text says why there is none. May end a new
        connection."""
        refusal = self._refusal(listener, address)
        if refusal is not None:
            return refusal
        if self._new_count >= self._new_max:
            self.replace_new()
        slot = ConnectionSlot(self, listener, address)
        self._places.add(slot)
        self._by_address[address] += 1
        self._open[listener] += 1
        self._new.setdefault(address, {})[slot] = None
        self._new_count += 1
        return slot

    def _refusal(self, listener: str, address: str) -> str | None:
        most = self._by_listener.get(listener)
        if most is not None and self._open[listener] >= most:
            key = f"listener.name.{listener.lower()}.max.connections"
            return f"there are {most} connections to this listener, the most that {key} allows"
        most = self._overrides.get(address)
        key = "max.connections.per.ip" if most is None else "max.connections.per.ip.overrides"
        most = self._max_per_ip if most is None else most
        if self._by_address[address] >= most:
            return f"there are {most} connections from {address}, the most that {key} allows"
        count, most = len(self._places), min(self._max_connections, self._files_max)
        if listener == self._protected:
            most = self._files_max + BROKERS_MORE
        if count >= most and not self.replace_new():
            text = FILES if self._files_max < self._max_connections else "max.connections allows"
            return f"there are {count} connections, the most that {text}"
        return None

    def replace_new(self) -> bool:
        """Ends the oldest new connection of the address that has most of them; False if there is none."""
        if not self._new_count:
            return False
        most = max(self._new.values(), key=len)
        place = next(iter(most))
        end = place.end
        self.left(place)
        end(REPLACED)
        return True

    @property
    def is_exceeded(self) -> bool:
        """True if a connection must close to make room."""
        return len(self._places) > min(self._max_connections, self._files_max)

    def may_end(self, listener: str) -> bool:
        """True if connections of this listener may close to make room."""
        return listener != self._protected

    def known(self, slot: ConnectionSlot) -> None:
        """See `ConnectionSlot.known`."""
        same = self._new.get(slot.address, {})
        if slot in same:
            del same[slot]
            self._new_count -= 1
            if not same:
                del self._new[slot.address]

    def left(self, slot: ConnectionSlot) -> None:
        """See `ConnectionSlot.leave`."""
        if slot not in self._places:
            return
        self.known(slot)
        slot.end = _nothing  # its owner must not wait for the garbage collector
        self._places.discard(slot)
        self._open[slot.listener] -= 1
        self._by_address[slot.address] -= 1
        if not self._by_address[slot.address]:
            del self._by_address[slot.address]


class CreationRate:
    """New connections per second (max.connection.creation.rate): how long the next one waits to be accepted.
    Up to a second's worth may come at once."""

    def __init__(self, per_s: int) -> None:
        self._per_s = per_s
        self._free_at_s = 0.0

    def wait_s(self, now_s: float) -> float:
        """0: it may be accepted now."""
        return max(self._free_at_s - now_s - 1.0, 0.0)

    def accepted(self, now_s: float) -> None:
        """Counts a connection."""
        self._free_at_s = max(self._free_at_s, now_s) + 1 / self._per_s


def _nothing(reason: str) -> None:
    return
