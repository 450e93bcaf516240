"""The time of a test cluster, as a test moves it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from metaquorum.testing.calls import CheckedCalls
from metaquorum.testing.clock import ClusterClock
from metaquorum.testing.errors import ClusterError

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
