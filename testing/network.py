"""The network between the nodes of a test cluster: whatever one sends to another passes here, byte by byte.

A node reaches each port of another one through a port of its own here. What is cut waits, as in a network
that loses packets: connections stay open, and go on when it heals, unless an end has given up.
"""

from __future__ import annotations

import asyncio
import random
import socket
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from typing import Any, Protocol, cast

from metaquorum.node.local_nodes import HOST

Pair = tuple[int, int]
"""The node that sends, and the one that receives."""
Delay = tuple[float, float]
"""In ms, and how much it varies, up or down, in ms."""


class Sending:
    """What one node sends to another."""

    def __init__(self, rng: random.Random) -> None:
        self.delays: list[Delay] = []
        """Of the faults in force."""
        self.passes = asyncio.Event()
        """Not set while a fault stops it."""
        self.passes.set()
        self.ends: set[_End] = set()
        """The sockets on which it arrives."""
        self._cuts = 0
        self._rng = rng

    def begin(self, delay: Delay | None) -> None:
        """It is delayed from now on; None: nothing passes."""
        if delay is not None:
            self.delays.append(delay)
            return
        self._cuts += 1
        self.passes.clear()
        for end in tuple(self.ends):
            end.look()

    def end(self, delay: Delay | None) -> None:
        """Ends what `begin` began: what waits goes on, and what is under way is as late as the faults still
        in force have it."""
        if delay is not None:
            self.delays.remove(delay)
            for end in tuple(self.ends):
                end.hurry()
            return
        self._cuts -= 1
        if not self._cuts:
            self.passes.set()
            for end in tuple(self.ends):
                end.look()

    def next_delay_s(self) -> float:
        """How much later the next bytes arrive."""
        total_ms = sum(ms + self._rng.uniform(-jitter, jitter) for ms, jitter in self.delays)
        return max(0.0, total_ms / 1000)


class _End(asyncio.Protocol):
    """A socket to one of the two nodes of a connection; what arrives on it goes to `other`, in order."""

    other: _End

    def __init__(self, sending: Sending) -> None:
        self.transport: asyncio.Transport | None = None
        """None: not connected yet."""
        self._sending = sending
        self.is_over = False
        """It was aborted."""
        self._queue: deque[tuple[float, float, bytes | None]] = deque()
        """What is under way: when it was sent and when it arrives, in s of the loop's time, and the bytes;
        None: the end of the connection."""
        self._timer: asyncio.TimerHandle | None = None
        self._other_is_full = False
        self._loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self._sending.ends.add(self)
        self.look()

    def look(self) -> None:
        """Reads, or does not, as the network and the other end have it."""
        if self.transport is not None:
            reads = self._sending.passes.is_set() and not self._other_is_full
            if reads and self.other.transport is not None:
                self.transport.resume_reading()
            else:
                self.transport.pause_reading()
        self._deliver()

    def data_received(self, data: bytes) -> None:
        target = self.other.transport
        # uvloop reads a little although reading was paused.
        if self._queue or self._sending.delays or target is None or not self._sending.passes.is_set():
            self._put(data)
        else:
            target.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.is_over:
            self._put(None)

    def pause_writing(self) -> None:
        self.other._takes_more(False)

    def resume_writing(self) -> None:
        self.other._takes_more(True)

    def _takes_more(self, does: bool) -> None:
        self._other_is_full = not does
        self.look()

    def hurry(self) -> None:
        """What is under way arrives as early as the delays still in force let it."""
        earliest_s, waiting = 0.0, self._queue
        self._queue = deque()
        for sent_s, due_s, data in waiting:
            earliest_s = max(earliest_s, min(due_s, sent_s + self._sending.next_delay_s()))
            self._queue.append((sent_s, earliest_s, data))
        self._stop_timer()
        self.look()

    def abort(self) -> None:
        """Ends the connection for both nodes, at once."""
        for end in (self, self.other):
            end.is_over = True
            end._queue.clear()
            end._stop_timer()
            end._sending.ends.discard(end)
            if end.transport is not None:
                end.transport.abort()

    def _put(self, data: bytes | None) -> None:
        now_s = self._loop.time()
        due_s = now_s + self._sending.next_delay_s()
        if self._queue:
            due_s = max(due_s, self._queue[-1][1])
        self._queue.append((now_s, due_s, data))
        self._deliver()

    def _deliver(self) -> None:
        """Passes on what is due."""
        target = self.other.transport
        while self._queue and self._sending.passes.is_set() and target is not None:
            _, due_s, data = self._queue[0]
            if due_s > self._loop.time():
                if self._timer is None:
                    self._timer = self._loop.call_at(due_s, self._wake)
                return
            self._queue.popleft()
            if data is None:
                self._sending.ends.discard(self)
                target.close()
            else:
                target.write(data)

    def _wake(self) -> None:
        self._timer = None
        self._deliver()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class ClusterNetwork(Protocol):
    """What a cluster does to the network between its nodes; `Network` and one of other processes."""

    async def begin(self, pairs: Sequence[Pair], delay: Delay | None) -> None: ...

    async def end(self, pairs: Sequence[Pair], delay: Delay | None) -> None: ...

    async def drop(self, a: int, b: int) -> int: ...

    async def close(self) -> None: ...

    @property
    def ports(self) -> Collection[int]:
        """Those of this process."""
        ...


class Network:
    """Everything but `place` is for the cluster's loop."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._owners: dict[int, int] = {}
        """The node of each port."""
        self._sendings: dict[Pair, Sending] = {}
        self._entries: dict[tuple[int, str, int], int] = {}
        """The port here at which a node reaches a host and port."""
        self._listening: list[socket.socket] = []
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def place(self, node: int, ports: Iterable[int]) -> None:
        """A node listens on these ports."""
        self._owners.update((port, node) for port in ports if port)

    def route_of(self, node: int) -> Callable[[str, int], tuple[str, int]]:
        """The `Route` of a node."""

        def route(host: str, port: int) -> tuple[str, int]:
            owner = self._owners.get(port, node)
            if owner == node:
                return host, port
            key = node, host, port
            if key not in self._entries:
                self._entries[key] = self._listen(node, owner, (host, port))
            return HOST, self._entries[key]

        return route

    def sending(self, source: int, target: int) -> Sending:
        """What one node sends to another."""
        if (source, target) not in self._sendings:
            self._sendings[source, target] = Sending(self._rng)
        return self._sendings[source, target]

    async def begin(self, pairs: Sequence[Pair], delay: Delay | None) -> None:
        """A fault of what these send. `delay` None: nothing passes."""
        for pair in pairs:
            self.sending(*pair).begin(delay)

    async def end(self, pairs: Sequence[Pair], delay: Delay | None) -> None:
        """Ends what `begin` began."""
        for pair in pairs:
            self.sending(*pair).end(delay)

    async def drop(self, a: int, b: int) -> int:
        """Ends all connections between two nodes, also those that are still being made; returns how many."""
        count = 0
        for end in (*self.sending(a, b).ends, *self.sending(b, a).ends):
            if not end.is_over:  # by its other end
                end.abort()
                count += 1
        return count

    @property
    def ports(self) -> Collection[int]:
        """Where nodes reach each other."""
        return self._entries.values()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        for server in self._servers:
            server.close()
        for listening in self._listening:
            listening.close()
        for sending in self._sendings.values():
            for end in tuple(sending.ends):
                end.abort()
        await asyncio.sleep(0)

    def _listen(self, source: int, target: int, address: tuple[str, int]) -> int:
        """Listens for the connections of one node to another; returns the port."""
        listening = socket.create_server((HOST, 0))
        listening.setblocking(False)
        self._listening.append(listening)
        there, back = self.sending(source, target), self.sending(target, source)

        def accept() -> asyncio.Protocol:
            near, far = _End(there), _End(back)
            near.other, far.other = far, near
            self._spawn(_join(near, far, (there, back), address))
            return near

        async def listen() -> None:
            self._servers.append(await asyncio.get_running_loop().create_server(accept, sock=listening))

        self._spawn(listen())
        return int(listening.getsockname()[1])

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _join(near: _End, far: _End, ways: tuple[Sending, Sending], address: tuple[str, int]) -> None:
    """Connects the second half, once bytes pass both ways."""
    while not all(way.passes.is_set() for way in ways):
        for way in ways:
            await way.passes.wait()
    if near.is_over:
        return
    try:
        await asyncio.get_running_loop().create_connection(lambda: far, *address)
    except OSError:
        near.abort()
        return
    if near.is_over:
        far.abort()
    else:
        near.look()
