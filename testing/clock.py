"""The clock of a test cluster: it follows real time, or waits for tests to move it.

Every node reads it, and the loop of the cluster takes its own time from it: timers, time limits and deadlines
move together. What clients do by their clocks stays real.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

from metaquorum.testing.calls import CheckedCalls
from metaquorum.testing.errors import ClusterError


class ClusterClock:
    """Thread-safe. Implements `clock.Clock`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._began_s = time.monotonic()
        self._wall_s = time.time() - self._began_s
        """Unix time minus the clock's."""
        self._moved_s = 0.0
        """How far it was moved."""
        self._held_at_s: float | None = None
        self.is_hurried = False
        """Time passes only while all wait for it, and then faster; Unix time does not."""
        self._calls: list[Callable[[], None]] = []

    def seconds(self) -> float:
        """Monotonic time."""
        held_s = self._held_at_s
        return time.monotonic() + self._moved_s if held_s is None else held_s

    def monotonic_ms(self) -> int:
        return int(self.seconds() * 1000)

    def wall_ms(self) -> int:
        return int((self.seconds() + self._wall_s) * 1000)

    @property
    def is_manual(self) -> bool:
        """True if only `move` lets time pass."""
        return self._held_at_s is not None

    def hold(self) -> None:
        """From now on only `move` lets time pass."""
        with self._lock:
            self._held_at_s = self.seconds()

    def hurry(self) -> None:
        """From now on time passes only while all wait for it, and then faster: the loop moves it."""
        self.hold()
        self.is_hurried = True

    def follow(self) -> None:
        """From now on it follows real time; Unix time is that of the machine."""
        with self._lock:
            self.is_hurried = False
            now_s = self.seconds()
            self._moved_s, self._held_at_s = now_s - time.monotonic(), None
            self._wall_s = time.time() - now_s

    def resume(self) -> None:
        """After `hold`: it follows real time again from where it is; Unix time, too."""
        with self._lock:
            self._moved_s, self._held_at_s = self.seconds() - time.monotonic(), None

    def move(self, by_s: float, *, wall: bool = True) -> None:
        """Moves it forward at once; `wall`: Unix time, too."""
        with self._lock:
            self._moved_s += by_s
            if not wall:
                self._wall_s -= by_s
            if self._held_at_s is not None:
                self._held_at_s += by_s
            calls = tuple(self._calls)
        for call in calls:
            call()

    def when_moved(self, call: Callable[[], None]) -> None:
        with self._lock:
            self._calls.append(call)

    def forget(self, calls: list[Callable[[], None]]) -> None:
        """Calls these no longer."""
        with self._lock:
            self._calls = [each for each in self._calls if each not in calls]


class NodeClock:
    """The cluster's clock for one node, which lets go of it when the node ends."""

    def __init__(self, clock: ClusterClock) -> None:
        self._clock = clock
        self._calls: list[Callable[[], None]] = []
        self._is_moved = False
        self.when_moved(self._note)
        self.monotonic_ms = clock.monotonic_ms
        self.wall_ms = clock.wall_ms

    def when_moved(self, call: Callable[[], None]) -> None:
        self._calls.append(call)
        self._clock.when_moved(call)

    def was_moved(self) -> bool:
        moved, self._is_moved = self._is_moved, False
        return moved

    def _note(self) -> None:
        self._is_moved = True

    def close(self) -> None:
        self._clock.forget(self._calls)


# The time of a test cluster, as a test moves it.

STEP_S = 0.1
SHORT_S = 10.0
"""Up to this, time passes in such steps, beyond in long ones."""
LONG_STEP_S = 0.2
"""The longest that no node takes for a pause (`SchedulerConfig.gap_ms`)."""
MIDDLE_S = 90.0
"""Up to this, time passes in steps; beyond, in `JUMPS` jumps, after what faults are to cause."""
JUMPS = 10
FIRST_S = 4.0
"""Before the jumps: a node that is down is fenced, and another one elected."""
YEAR_S = 365 * 86_400.0
LONGEST_S = 100 * YEAR_S
"""Beyond, times of records have no date."""
SETTLE_STEPS = 2
"""Long steps after a jump, in which nodes exchange the heartbeats that are overdue."""
RECOVERY_STEPS_MAX = 100
"""Steps at the end of a long way until all nodes serve, so that a manual clock does not stop an election."""

Run = Callable[[Callable[[], None], str], None]
"""Calls a function on the loop of the cluster, and returns once the nodes have done what is due then; the
text says for what."""


class TimeControl(CheckedCalls):
    """`Cluster.clock`."""

    def __init__(
        self, clock: ClusterClock, run: Run, is_whole: Callable[[], bool], carry: Callable[[float], None]
    ) -> None:
        """`is_whole`: whether the nodes that run serve, as far as the faults in force let them. `carry`: the
        clock jumps by so many s, and the nodes that run do not take it for silence of the others."""
        self._carry = carry
        self._clock = clock
        self._run = run
        self._is_whole = is_whole

    @property
    def wall_ms(self) -> int:
        """Unix time by the cluster's clock: the default of new records' time stamps at brokers."""
        return self._clock.wall_ms()

    def advance(
        self, *, days: float = 0, hours: float = 0, minutes: float = 0, seconds: float = 0, ms: float = 0
    ) -> None:
        """Moves the time of all nodes forward. What is due happens in order: heartbeats, sessions, leases,
        elections, retention, expiry. A long way ends up to 10 s later, once the nodes serve again."""
        total_s = ((days * 24 + hours) * 60 + minutes) * 60 + seconds + ms / 1000
        if not 0 < total_s <= LONGEST_S:  # nor by what is not a number
            years = LONGEST_S / YEAR_S
            raise ClusterError(
                f"the clock cannot move by {total_s:g} s: it moves forward only, by up to {years:g} years"
            )
        with self._held():
            self._advance(total_s)

    @contextlib.contextmanager
    def _held(self) -> Iterator[None]:
        """Real time does not pass: however slow the machine is, the nodes do the same."""
        if self._clock.is_manual:
            yield
            return
        self._clock.hold()
        try:
            yield
        finally:
            self._clock.resume()

    def _advance(self, total_s: float) -> None:
        if total_s <= MIDDLE_S:
            self._pass(total_s, STEP_S if total_s <= SHORT_S else LONG_STEP_S)
            return
        self._pass(FIRST_S, LONG_STEP_S)
        settle_s = LONG_STEP_S * SETTLE_STEPS
        jump_s = (total_s - FIRST_S) / JUMPS - settle_s
        for _ in range(JUMPS):
            self._jump(jump_s)
            self._pass(settle_s, LONG_STEP_S)
        self.pass_until(self._is_whole)

    def pass_until(self, condition: Callable[[], bool]) -> None:
        """Time passes in short steps until a condition is true, and for at most 10 s."""
        for _ in range(RECOVERY_STEPS_MAX):
            if condition():
                return
            self._pass(STEP_S)

    def _pass(self, seconds: float, longest_s: float = STEP_S) -> None:
        while seconds > 1e-9:
            step_s = min(longest_s, seconds)
            self._move(step_s)
            seconds -= step_s

    def _jump(self, by_s: float) -> None:
        def jump() -> None:
            self._carry(by_s)
            self._clock.move(by_s)

        self._run(jump, "the clock to move")

    def _move(self, by_s: float) -> None:
        self._run(lambda: self._clock.move(by_s), "the clock to move")
