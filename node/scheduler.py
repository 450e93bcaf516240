"""Decides when a node's driver takes its next step, and which events are in it.

Pure: reads only an injected clock. The driver and the simulator run this same class.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Protocol

import msgspec

from metaquorum.clock import Clock
from metaquorum.observability.metrics.statistics import LoopStatistics


class SchedulerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of a step. Durations in ms."""

    inbox_max_events: int = 20_000
    """Requests of others beyond this number are refused."""
    step_max_events: int = 256
    step_max_ms: int = 20
    """The most events of a step, and the longest duration, before sockets and timers get a turn."""
    long_ms: int = 3
    pause_max_ms: int = 8
    """A tick that is due after `long_ms` or more of events, or of another tick, waits as long as those took,
    at most `pause_max_ms`: work in slices would leave no time for sockets, and heartbeats would wait."""
    gap_ms: int = 200
    """A step that is late by more than this, or takes longer, is a gap."""
    gap_settle_ms: int = 250
    """Time after a gap in which sockets deliver the data that waited in them. Until then the silence of
    others does not count: the runner is told until when."""


class Runner(Protocol):
    """A node, and the code that carries out its effects before a call returns."""

    def handle(self, event: Any, *, now_ms: int, wall_ms: int) -> None: ...

    def must_wait(self, event: Any) -> bool:
        """Whether an event is to be handled later: others go first until this is False."""

    def settle(self, *, now_ms: int, wall_ms: int) -> None:
        """Handles the consequences of all events of a step together; called once after them."""

    def tick(self, *, now_ms: int, wall_ms: int, drained: bool) -> None: ...

    def stalled(self, gap_ms: int, until_ms: int) -> None:
        """There was a gap of `gap_ms`; until `until_ms` the silence of others proves nothing."""

    def next_deadline_ms(self) -> int | None: ...


class Scheduler:
    """Call `began` when the node has started, `post` or `submit` for each event, and `step` at `due_ms`.

    Every event is handled, in order of arrival; those that must wait let others pass. The node's tick follows
    when its deadline has passed and the step's events are handled, or after one pause if they took long;
    while the node recovers from a gap, only a step that has events includes a tick. After an exception of the
    runner the node has ended: call nothing more.
    """

    def __init__(
        self,
        runner: Runner,
        clock: Clock,
        config: SchedulerConfig,
        statistics: LoopStatistics | None = None,
    ) -> None:
        self.config = config
        self.statistics = statistics or LoopStatistics()
        self.due_ms: int | None = None
        """When to call `step`, on the clock; if that is not in the future, at once. None: after the next
        event."""
        self.now_ms = clock.monotonic_ms()
        """The last time read from the clock."""
        self.stopped = False
        self.stepping = False
        """True during a step; `due_ms` is valid again when it ends."""
        self._runner = runner
        self._clock = clock
        self._inbox: deque[Any] = deque()
        self._put_off: deque[Any] = deque()
        """Events that must wait, which arrived before all in the inbox."""
        self._settled_ms = 0
        """Until this time the silence of others does not count, because of a gap."""
        self._tick_from_ms: int | None = None
        """A tick that is due waits until then; None: it has not been put off."""

    def __len__(self) -> int:
        """Number of events that are not handled yet."""
        return len(self._inbox) + len(self._put_off)

    # ---- events

    def submit(self, event: Any) -> bool:
        """Queues a request from outside; returns False if the inbox is full (BUSY)."""
        if self.stopped or len(self) >= self.config.inbox_max_events:
            self.statistics.refused += 1
            return False
        self.post(event)
        return True

    def post(self, event: Any) -> None:
        """Queues a response to this node's own request; the number of requests bounds these events."""
        inbox = self._inbox
        if not inbox and not self.stepping and self._runner.must_wait(event):
            self._put_off.append(event)
            return
        inbox.append(event)
        if len(inbox) == 1 and not self.stepping:
            now_ms = self.now_ms = self._clock.monotonic_ms()
            if self.due_ms is not None and now_ms > self.due_ms:
                self._note_gap(now_ms - self.due_ms, now_ms)
            self._plan(now_ms, None)

    # ---- steps

    def began(self, deadline_ms: int | None) -> None:
        """The node has started; `deadline_ms` is its first deadline."""
        self.now_ms = self._clock.monotonic_ms()
        self._plan(self.now_ms, deadline_ms)

    def step(self) -> bool:
        """Takes the step that is due; returns False after a stop."""
        clock, runner = self._clock, self._runner
        begun_ms = self.now_ms = clock.monotonic_ms()
        if self.stopped:
            return False
        if self.due_ms is not None and begun_ms > self.due_ms:
            self._note_gap(begun_ms - self.due_ms, begun_ms)
        self.stepping = True
        now_ms = self._handle_inbox(begun_ms)
        if self.stopped:
            return True
        # Before the tick, because data that arrived during the step may still be in the sockets.
        stalled = now_ms > begun_ms and self._note_gap(now_ms - begun_ms, now_ms)
        deadline_ms = runner.next_deadline_ms()
        if self._ticks(deadline_ms, begun_ms, now_ms):
            ticked_ms = now_ms
            runner.tick(now_ms=now_ms, wall_ms=clock.wall_ms(), drained=not self._inbox)
            now_ms = clock.monotonic_ms()
            deadline_ms = runner.next_deadline_ms()
            self._tick_from_ms = None
            self._ticks(deadline_ms, ticked_ms, now_ms)
            if not stalled:
                self._note_gap(now_ms - begun_ms, now_ms)
        self.stepping = False
        self.now_ms = now_ms
        self._plan(now_ms, deadline_ms)
        return True

    def _ticks(self, deadline_ms: int | None, begun_ms: int, now_ms: int) -> bool:
        """Whether a tick is due. Puts it off, once, if the work since `begun_ms` took long."""
        if deadline_ms is None or deadline_ms > now_ms:
            self._tick_from_ms = None
            return False
        took_ms = now_ms - begun_ms
        if self._tick_from_ms is None and took_ms >= self.config.long_ms:
            self._tick_from_ms = now_ms + min(took_ms, self.config.pause_max_ms)
        return self._tick_from_ms is None or self._tick_from_ms <= now_ms

    def _handle_inbox(self, now_ms: int) -> int:
        """Handles up to `step_max_events` events; returns the time after them."""
        handle, clock = self._runner.handle, self._clock
        wall_ms, until_ms = clock.wall_ms(), now_ms + self.config.step_max_ms
        left = self.config.step_max_events
        while left and now_ms <= until_ms and not self.stopped and (ready := self._ready()):
            left -= 1
            handle(ready.popleft(), now_ms=now_ms, wall_ms=wall_ms)
            now_ms = clock.monotonic_ms()
        if not self.stopped:
            self._runner.settle(now_ms=now_ms, wall_ms=wall_ms)
            now_ms = clock.monotonic_ms()
        self.statistics.events += self.config.step_max_events - left
        self.statistics.steps += 1
        return now_ms

    def _ready(self) -> deque[Any]:
        """The events of which the first is the next; empty if there is none. Puts off those in front of it
        that must wait."""
        inbox, put_off, must_wait = self._inbox, self._put_off, self._runner.must_wait
        if put_off and not must_wait(put_off[0]):
            return put_off
        while inbox and must_wait(inbox[0]):
            put_off.append(inbox.popleft())
        return inbox

    # ---- when the next step is

    def _plan(self, now_ms: int, deadline_ms: int | None) -> None:
        if not self._ready():
            # Overdue deadlines wait until the node has recovered from the gap: a tick before would only spin.
            from_ms = max(self._settled_ms, self._tick_from_ms or 0)
            waits = deadline_ms is not None and from_ms > now_ms
            self.due_ms = max(deadline_ms or 0, from_ms) if waits else deadline_ms
        else:
            self.due_ms = now_ms

    # ---- gaps

    def _note_gap(self, gap_ms: int, now_ms: int) -> bool:
        """True if this time without reading the sockets is a gap. Call it before anything else changes
        `due_ms`."""
        statistics = self.statistics
        statistics.longest_gap_ms = max(statistics.longest_gap_ms, gap_ms)
        if gap_ms <= self.config.gap_ms:
            return False
        statistics.gaps += 1
        self._settled_ms = now_ms + self.config.gap_settle_ms
        self._runner.stalled(gap_ms, self._settled_ms)
        return True


class Flushed(Protocol):
    """An object that gathers work during a step."""

    def flush(self) -> None: ...


class StepEnd:
    """Work that is deferred to the end of a step, to do it once for everything in the step: a system call
    that wakes another thread or process, which may take the processor at once. `gathers` is True during a
    step."""

    def __init__(self) -> None:
        self.gathers = False
        self._waiting: list[Flushed] = []

    def begin(self) -> None:
        """Called when a step begins."""
        self.gathers = True

    def add(self, gathered: Flushed) -> None:
        """Flushes `gathered` at the end of the step, once per call."""
        self._waiting.append(gathered)

    def flush(self) -> None:
        """Called when the step has ended: flushes everything that was added."""
        self.gathers = False
        waiting, self._waiting = self._waiting, []
        for gathered in waiting:
            gathered.flush()
