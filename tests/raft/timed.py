"""A `World` whose messages and disk writes take simulated time: how long an election takes, not whether."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable

from tests.raft.world import World


class TimedWorld:
    """`message_ms` and `disk_ms` draw how long the next message and the next write take."""

    def __init__(
        self, seed: int, message_ms: Callable[[random.Random], int], disk_ms: Callable[[random.Random], int]
    ) -> None:
        self.world = World(3, seed=seed)
        self.rng = random.Random(seed)
        self.message_ms = message_ms
        self.disk_ms = disk_ms
        self.paused: set[int] = set()
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._sequence = 0
        self._writing: set[int] = set()
        for node_id in self.world.nodes:
            self.world.start(node_id)

    def run_until(self, end_ms: int, stop: Callable[[World], bool] = lambda world: False) -> bool:
        """Advance to `end_ms`, or until `stop` holds (then True)."""
        world = self.world
        while world.now < end_ms:
            self._schedule()
            if stop(world):
                return True
            world.now = max(world.now, min(self._next_ms(), end_ms))
            self._act()
        return False

    def _schedule(self) -> None:
        for message in [m for m in self.world.messages if m.target not in self.paused]:
            self.world.messages.remove(message)
            self._later(self.message_ms(self.rng), lambda message=message: self._deliver(message))
        for node in self.world.live:
            if (node.persists or node.syncs) and node.node_id not in self._writing:
                self._writing.add(node.node_id)
                self._later(self.disk_ms(self.rng), lambda node_id=node.node_id: self._write(node_id))

    def _deliver(self, message: object) -> None:
        from tests.raft.world import Message

        assert isinstance(message, Message)
        if message.target in self.paused:
            self.world.messages.append(message)
        elif self.world.nodes[message.source].core is not None:
            self.world.deliver(message)

    def _write(self, node_id: int) -> None:
        self._writing.discard(node_id)
        node = self.world.nodes[node_id]
        if node.core is None:
            return
        if node.persists:
            self.world.persist_next(node_id)
        elif node.syncs:
            self.world.sync_next(node_id)

    def _later(self, delay_ms: int, action: Callable[[], None]) -> None:
        self._sequence += 1
        heapq.heappush(self._queue, (self.world.now + delay_ms, self._sequence, action))

    def _awake(self) -> list[int]:
        return [node.node_id for node in self.world.live if node.node_id not in self.paused]

    def _next_ms(self) -> int:
        world = self.world
        times = [due for (who, _), (_, due) in world.outstanding.items() if who not in self.paused]
        times += [self._queue[0][0]] if self._queue else []
        for node_id in self._awake():
            deadline = world.core(node_id).next_deadline_ms()
            times += [deadline] if deadline is not None else []
        return min(times)

    def _act(self) -> None:
        world = self.world
        while self._queue and self._queue[0][0] <= world.now:
            heapq.heappop(self._queue)[2]()
        for (who, cid), (_, due) in list(world.outstanding.items()):
            if due <= world.now and who not in self.paused:
                world.fail(who, cid, "timed out")
        for node_id in self._awake():
            deadline = world.core(node_id).next_deadline_ms()
            if deadline is not None and deadline <= world.now:
                world.input(node_id, lambda core: core.tick(now_ms=world.now))
