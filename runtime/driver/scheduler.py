"""Decides when a node's driver takes its next step and which events are in it.

Owns the inbox, the length of a step, the linger that gathers requests under load, and the guard against
gaps, in which a process stood still and the silence of others proves nothing. The driver and the simulator
run this very class. Pure: it asks a clock that it is given, and knows no loop, no disk and no effect.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from metaquorum.runtime.clock import Clock
from metaquorum.runtime.driver.statistics import LoopStatistics


class SchedulerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of a step. Durations in ms."""

    inbox_max_events: int = 20_000
    """Requests of others are refused beyond."""
    step_max_events: int = 256
    step_max_ms: int = 20
    """Events handled, and time spent, before sockets and timers get a turn."""
    linger_from: int = 12
    """From this many clients that wait for an answer, a step waits for more events. A round of replication
    costs every node the same, however much is in it: bursts halve the processor time of a write."""
    linger_enough: int = 24
    """A step that waits ends its wait at this many events; followers and clients would have nothing to do
    meanwhile."""
    linger_ms: int = 2
    """A step waits on while events keep coming, and looks for them at this interval."""
    linger_max_ms: int = 8
    gap_ms: int = 200
    """A step that comes this much too late, or takes this long, is a gap."""
    gap_settle_ms: int = 250
    """The time after a gap that sockets need to bring what waited in them to the inbox. Until then no
    silence is judged, and the inbox does not count as drained."""


class Runner(Protocol):
    """A node, and the shell that carries its effects out before a call returns."""

    def handle(self, event: Any, now_ms: int, wall_ms: int) -> None: ...

    def settle(self, now_ms: int, wall_ms: int) -> None:
        """What follows from all events of a step together; called once behind them."""

    def tick(self, now_ms: int, wall_ms: int, *, drained: bool) -> None: ...

    def stalled(self, gap_ms: int, until_ms: int) -> None:
        """There was a gap, and until then the silence of others proves nothing."""

    def next_deadline_ms(self) -> int | None: ...


class Scheduler:
    """Call `began` when the node has started, `post` or `submit` for each event, and `step` at `due_ms`.

    Every event is handled, in the order in which it came. A node's tick comes when its deadline has passed
    and the step's events are handled; never while a gap is being made up for, unless an event makes the step.
    An exception of the runner ends the node: call nothing more. `waiting_clients` says how many wait.
    """

    def __init__(
        self,
        runner: Runner,
        clock: Clock,
        config: SchedulerConfig,
        waiting_clients: Callable[[], int] = lambda: 0,
    ) -> None:
        self.config = config
        self.statistics = LoopStatistics()
        self.due_ms: int | None = None
        """When `step` is to be called, on the clock; in the past or now: at once. None: an event decides."""
        self.now_ms = clock.monotonic_ms()
        """What the clock showed when it was last looked at."""
        self.stopped = False
        self.stepping = False
        """A step is being taken: `due_ms` is known again when it ends."""
        self._runner = runner
        self._clock = clock
        self._waiting_clients = waiting_clients
        self._inbox: deque[Any] = deque()
        self._linger_until_ms: int | None = None
        self._seen = 0
        """Events in the inbox when the linger looked last."""
        self._settled_ms = 0
        """No silence is judged before."""

    def __len__(self) -> int:
        """Events in the inbox."""
        return len(self._inbox)

    # ---- events

    def submit(self, event: Any) -> bool:
        """Takes an event that others ask for; False, and nothing happens, when the inbox is full (BUSY)."""
        if self.stopped or len(self._inbox) >= self.config.inbox_max_events:
            self.statistics.refused += 1
            return False
        self.post(event)
        return True

    def post(self, event: Any) -> None:
        """Takes an event that answers what this node asked for; what it asks bounds their number."""
        inbox = self._inbox
        inbox.append(event)
        if self.stepping:
            return
        if len(inbox) == 1:
            now_ms = self.now_ms = self._clock.monotonic_ms()
            if self.due_ms is not None and now_ms > self.due_ms:
                self._note_gap(now_ms - self.due_ms, now_ms)
            self._plan(now_ms, None)
        elif len(inbox) == self.config.linger_enough and self._linger_until_ms is not None:
            self.now_ms = self.due_ms = self._clock.monotonic_ms()
            self._linger_until_ms = None

    # ---- steps

    def began(self, deadline_ms: int | None) -> None:
        """The node has started; `deadline_ms` is its first deadline."""
        self.now_ms = self._clock.monotonic_ms()
        self._plan(self.now_ms, deadline_ms)

    def step(self) -> bool:
        """Takes the step that is due; False, and nothing happens, while it waits for more events."""
        clock, runner = self._clock, self._runner
        begun_ms = self.now_ms = clock.monotonic_ms()
        if self.stopped or (self._linger_until_ms is not None and self._lingers_on(begun_ms)):
            return False
        if self.due_ms is not None and begun_ms > self.due_ms:
            self._note_gap(begun_ms - self.due_ms, begun_ms)
        self.stepping = True
        now_ms = self._handle_inbox(begun_ms)
        if self.stopped:
            return True
        # Before the tick: what came meanwhile may still be in the sockets.
        stalled = now_ms > begun_ms and self._note_gap(now_ms - begun_ms, now_ms)
        deadline_ms = runner.next_deadline_ms()
        if deadline_ms is not None and deadline_ms <= now_ms:
            drained = not self._inbox and now_ms >= self._settled_ms
            runner.tick(now_ms, clock.wall_ms(), drained=drained)
            now_ms = clock.monotonic_ms()
            deadline_ms = runner.next_deadline_ms()
            if not stalled:
                self._note_gap(now_ms - begun_ms, now_ms)
        self.stepping = False
        self.now_ms = now_ms
        self._plan(now_ms, deadline_ms)
        return True

    def _handle_inbox(self, now_ms: int) -> int:
        """As many events as a step may have; what the clock shows behind them."""
        inbox, handle, clock = self._inbox, self._runner.handle, self._clock
        wall_ms, until_ms = clock.wall_ms(), now_ms + self.config.step_max_ms
        left = self.config.step_max_events
        while inbox and left and now_ms <= until_ms and not self.stopped:
            left -= 1
            handle(inbox.popleft(), now_ms, wall_ms)
            now_ms = clock.monotonic_ms()
        if not self.stopped:
            self._runner.settle(now_ms, wall_ms)
            now_ms = clock.monotonic_ms()
        self.statistics.events += self.config.step_max_events - left
        self.statistics.steps += 1
        return now_ms

    # ---- when the next step is

    def _plan(self, now_ms: int, deadline_ms: int | None) -> None:
        config = self.config
        self._linger_until_ms = None
        if not self._inbox:
            # What is overdue may not be judged before the gap is made up for: a tick would only spin.
            settling = deadline_ms is not None and self._settled_ms > now_ms
            self.due_ms = max(deadline_ms or 0, self._settled_ms) if settling else deadline_ms
        elif self._waiting_clients() >= config.linger_from and len(self._inbox) < config.linger_enough:
            self._linger_until_ms = now_ms + config.linger_max_ms
            self._linger(now_ms)
        else:
            self.due_ms = now_ms

    def _linger(self, now_ms: int) -> None:
        self._seen = len(self._inbox)
        self.due_ms = now_ms + self.config.linger_ms

    def _lingers_on(self, now_ms: int) -> bool:
        """Whether the step waits: it is too early to look, or events keep coming and there is time."""
        until_ms = self._linger_until_ms
        if until_ms is None or self.due_ms is None:
            return False
        if now_ms < self.due_ms:
            return True
        if len(self._inbox) > self._seen and now_ms < until_ms:
            self._linger(now_ms)
            return True
        self._linger_until_ms = None
        return False

    # ---- gaps

    def _note_gap(self, gap_ms: int, now_ms: int) -> bool:
        """Whether this time without a look at the sockets is a gap. Lateness is judged before anything else
        moves `due_ms`."""
        statistics = self.statistics
        statistics.longest_gap_ms = max(statistics.longest_gap_ms, gap_ms)
        if gap_ms <= self.config.gap_ms:
            return False
        statistics.gaps += 1
        self._settled_ms = now_ms + self.config.gap_settle_ms
        self._runner.stalled(gap_ms, self._settled_ms)
        return True
