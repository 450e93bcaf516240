"""When steps come, what is in them, and what counts as a gap; with a clock that a test moves."""

from __future__ import annotations

import random
from typing import Any

import pytest

from metaquorum.node.scheduler import Scheduler, SchedulerConfig

CONFIG = SchedulerConfig(inbox_max_events=50, step_max_events=4)


class Rig:
    """The clock and the runner. An event is a number; `cost_ms` is what handling it takes. `ticks`: when, and
    whether the runner may judge the silence of others."""

    def __init__(self, config: SchedulerConfig = CONFIG) -> None:
        self.now_ms = 1_000
        self.held_back: set[Any] = set()
        self.deadline_ms: int | None = None
        self.handled: list[Any] = []
        self.handled_at_ms: list[int] = []
        self.steps: list[int] = []
        self.settled: list[int] = []
        self.ticks: list[tuple[int, bool]] = []
        self.gaps: list[tuple[int, int]] = []
        self.hold_until_ms = 0
        self.cost_ms: dict[Any, int] = {}
        self.follow_ups: dict[Any, Any] = {}
        self.releases: dict[Any, set[Any]] = {}
        self.scheduler = Scheduler(self, self, config)

    def monotonic_ms(self) -> int:
        return self.now_ms

    def wall_ms(self) -> int:
        return 0

    def handle(self, event: Any, *, now_ms: int, wall_ms: int) -> None:
        assert now_ms == self.now_ms
        self.handled.append(event)
        self.handled_at_ms.append(now_ms)
        self.now_ms += self.cost_ms.get(event, 0)
        self.held_back -= self.releases.get(event, set())
        if event in self.follow_ups:
            self.scheduler.post(self.follow_ups[event])

    def must_wait(self, event: Any) -> bool:
        return event in self.held_back

    def settle(self, *, now_ms: int, wall_ms: int) -> None:
        self.settled.append(len(self.handled))
        self.now_ms += self.cost_ms.get("settle", 0)

    def tick(self, *, now_ms: int, wall_ms: int, drained: bool) -> None:
        self.ticks.append((now_ms, drained and now_ms >= self.hold_until_ms))
        self.deadline_ms = None
        self.now_ms += self.cost_ms.get("tick", 0)

    def stalled(self, gap_ms: int, until_ms: int) -> None:
        self.gaps.append((gap_ms, until_ms))
        self.hold_until_ms = until_ms

    def next_deadline_ms(self) -> int | None:
        return self.deadline_ms

    def run(self, until_ms: int) -> None:
        """Calls `step` whenever it is due, as a driver does."""
        while (due_ms := self.scheduler.due_ms) is not None and due_ms <= until_ms:
            self.now_ms = max(self.now_ms, due_ms)
            before = len(self.handled)
            if self.scheduler.step():
                self.steps.append(len(self.handled) - before)
        self.now_ms = max(self.now_ms, until_ms)


def test_a_lone_event_is_handled_at_once_and_what_it_causes_in_the_same_step() -> None:
    rig = Rig()
    rig.follow_ups = {"append": "read"}
    rig.scheduler.post("append")
    assert rig.scheduler.due_ms == rig.now_ms
    rig.run(rig.now_ms)
    assert rig.handled == ["append", "read"] and rig.steps == [2]
    assert rig.scheduler.due_ms is None


def test_a_step_ends_after_so_many_events_and_the_next_goes_on_in_order() -> None:
    rig = Rig()
    for event in range(10):
        rig.scheduler.post(event)
    rig.run(rig.now_ms)
    assert rig.handled == list(range(10)) and rig.steps == [4, 4, 2]


def test_a_step_ends_when_its_time_is_over() -> None:
    rig = Rig()
    rig.cost_ms = {0: 21}
    for event in range(3):
        rig.scheduler.post(event)
    rig.run(rig.now_ms + 100)
    assert rig.steps == [1, 2]
    assert rig.settled == [1, 3], "once for all events of a step, behind them"


def test_a_deadline_ticks_with_a_drained_inbox() -> None:
    rig = Rig()
    rig.deadline_ms = 1_050
    rig.scheduler.began(rig.deadline_ms)
    rig.run(1_049)
    assert rig.ticks == []
    rig.run(1_050)
    assert rig.ticks == [(1_050, True)]


def test_a_deadline_that_has_come_ticks_behind_a_full_step_and_says_that_more_waits() -> None:
    rig = Rig()
    rig.deadline_ms = 900
    for event in range(5):
        rig.scheduler.post(event)
    rig.scheduler.step()
    assert rig.handled == [0, 1, 2, 3] and rig.ticks == [(1_000, False)]


@pytest.mark.parametrize(("cost_ms", "tick_ms"), [(2, 1_002), (3, 1_006), (7, 1_014), (15, 1_023)])
def test_a_tick_leaves_sockets_as_much_time_as_a_long_event_took(cost_ms: int, tick_ms: int) -> None:
    rig = Rig()
    rig.deadline_ms = 1_000
    rig.cost_ms = {"long": cost_ms}
    rig.scheduler.post("long")
    rig.run(1_030)
    assert rig.ticks == [(tick_ms, True)] and rig.steps == ([1] if cost_ms == 2 else [1, 0])


@pytest.mark.parametrize(("cost_ms", "ticks_ms"), [(2, [0, 2, 4, 6]), (5, [0, 10, 20]), (20, [0, 28, 56])])
def test_events_that_arrive_between_slices_of_work_do_not_wait_for_all_of_it(
    cost_ms: int, ticks_ms: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig()
    rig.cost_ms = {"tick": cost_ms}
    slices = len(ticks_ms)
    monkeypatch.setattr(rig, "next_deadline_ms", lambda: 1_000 if len(rig.ticks) < slices else None)
    rig.scheduler.began(1_000)
    rig.scheduler.step()
    rig.scheduler.post("heartbeat")
    rig.run(2_000)
    assert rig.handled_at_ms == [1_000 + cost_ms]
    assert [at_ms - 1_000 for at_ms, _ in rig.ticks] == ticks_ms


def test_a_tick_is_put_off_once_however_long_the_events_behind_it_take() -> None:
    rig = Rig()
    rig.deadline_ms = 1_000
    rig.cost_ms = dict.fromkeys(range(100), 5)
    rig.scheduler.post(0)
    for event in range(1, 100):
        rig.scheduler.step()
        if rig.ticks:
            break
        rig.scheduler.post(event)
    assert rig.ticks == [(1_010, True)], "put off at 1,005 until 1,010"
    rig.deadline_ms = rig.now_ms
    rig.scheduler.post(100)
    rig.cost_ms = {100: 5}
    rig.scheduler.step()
    assert len(rig.ticks) == 1, "the next one has a pause of its own"


def test_what_must_wait_lets_others_pass_and_comes_first_when_it_may() -> None:
    rig = Rig()
    rig.held_back, rig.releases = {1, 2, 5}, {"commit": {1, 2, 5}}
    for event in (0, 1, "fetch", 2):
        rig.scheduler.post(event)
    rig.run(rig.now_ms)
    assert rig.handled == [0, "fetch"] and len(rig.scheduler) == 2
    for event in (5, "commit", 6):
        rig.scheduler.post(event)
    rig.run(rig.now_ms)
    assert rig.handled[2:] == ["commit", 1, 2, 5, 6]


def test_what_must_wait_asks_for_no_step_and_leaves_the_deadline() -> None:
    rig = Rig()
    rig.held_back, rig.deadline_ms = {0, 1}, 1_050
    rig.scheduler.began(rig.deadline_ms)
    rig.scheduler.post(0)
    assert rig.scheduler.due_ms == 1_050
    rig.run(1_050)
    assert rig.handled == [] and rig.ticks == [(1_050, True)]
    rig.scheduler.post(1)
    assert rig.scheduler.due_ms is None


def test_a_step_that_has_no_room_for_all_that_waited_is_followed_by_another_at_once() -> None:
    rig = Rig()
    rig.held_back, rig.releases = set(range(6)), {"commit": set(range(6))}
    for event in (*range(6), "commit"):
        rig.scheduler.post(event)
    rig.run(rig.now_ms)
    assert rig.handled == ["commit", *range(6)] and rig.steps == [4, 3]


def test_a_tick_may_end_the_wait() -> None:
    rig = Rig()
    rig.held_back, rig.deadline_ms = {0}, 1_010
    rig.scheduler.began(rig.deadline_ms)
    rig.scheduler.post(0)
    rig.held_back = set()
    rig.run(1_010)
    assert rig.handled == [0]


def test_a_full_inbox_refuses_what_is_submitted_and_takes_what_is_posted() -> None:
    rig = Rig()
    assert [rig.scheduler.submit(event) for event in range(52)] == [True] * 50 + [False] * 2
    rig.scheduler.post(99)
    rig.run(rig.now_ms)
    assert rig.handled == [*range(50), 99] and rig.scheduler.statistics.refused == 2


def test_after_a_stop_nothing_is_handled_or_taken() -> None:
    rig = Rig()
    rig.scheduler.post(0)
    rig.scheduler.stopped = True
    assert not rig.scheduler.step() and not rig.scheduler.submit(1)
    assert rig.handled == [] and len(rig.scheduler) == 1


# ---- gaps


@pytest.mark.parametrize(("late_ms", "gap"), [(200, False), (201, True)])
@pytest.mark.parametrize("first", ["timer", "socket"])
def test_a_deadline_that_comes_too_late_is_a_gap(late_ms: int, gap: bool, first: str) -> None:
    """Whatever the loop does first when the process goes on: its timer, or what waits in a socket."""
    rig = Rig()
    rig.deadline_ms = 1_010
    rig.scheduler.began(rig.deadline_ms)
    rig.now_ms = woken_ms = 1_010 + late_ms
    if first == "socket":
        rig.scheduler.post("waited")
    rig.scheduler.step()
    assert rig.gaps == ([(late_ms, woken_ms + 250)] if gap else [])
    assert rig.ticks == [(woken_ms, not gap)]


def test_nobody_is_judged_until_a_gap_is_made_up_for() -> None:
    rig = Rig()
    rig.scheduler.began(1_000)
    rig.now_ms = 5_000
    rig.scheduler.step()
    rig.ticks.clear()
    rig.deadline_ms = 4_000
    rig.scheduler.post(0)
    rig.run(5_000)
    assert rig.ticks == [(5_000, False)]  # an event made the step
    rig.deadline_ms = 4_000
    rig.scheduler.post(1)
    rig.run(5_001)
    rig.deadline_ms = 4_000
    rig.scheduler.began(rig.deadline_ms)
    assert rig.scheduler.due_ms == 5_250
    rig.ticks.clear()
    rig.run(5_250)
    assert rig.ticks == [(5_250, True)]


@pytest.mark.parametrize("who", ["event", "settle", "tick"])
def test_a_step_that_takes_too_long_is_a_gap(who: str) -> None:
    rig = Rig()
    rig.deadline_ms = 1_000
    rig.cost_ms = {who: 900}
    rig.scheduler.post("event")
    rig.scheduler.step()
    assert rig.gaps == [(900, 2_150)] and rig.scheduler.statistics.longest_gap_ms == 900
    # What came meanwhile may still be in the sockets; a tick judges before it takes long.
    assert rig.ticks == ([(1_000, True)] if who == "tick" else [])
    rig.cost_ms.clear()
    rig.run(3_000)
    assert rig.ticks == [(1_000, True) if who == "tick" else (2_150, True)]


def test_a_second_gap_extends_the_first() -> None:
    rig = Rig()
    rig.scheduler.began(1_000)
    rig.now_ms = 2_000
    rig.scheduler.step()
    rig.deadline_ms = 1_500
    rig.scheduler.began(rig.deadline_ms)
    rig.now_ms = 2_600
    rig.scheduler.step()
    assert [until_ms for _, until_ms in rig.gaps] == [2_250, 2_850]
    assert rig.ticks[-1] == (2_600, False)


@pytest.mark.parametrize("seed", range(40))
def test_every_event_is_handled_once_within_the_bounds_of_a_step(seed: int) -> None:
    rng = random.Random(seed)
    rig = Rig()
    rig.cost_ms = {event: rng.choice((0, 0, 1, 30)) for event in range(300)}
    posted = 0
    while posted < 300:
        rig.held_back = set(rng.sample(range(300), rng.randrange(60)))
        for _ in range(rng.randrange(8)):
            if posted < 300:
                rig.scheduler.post(posted)
                posted += 1
        rig.deadline_ms = rng.choice((None, rig.now_ms + rng.randrange(20)))
        rig.run(rig.now_ms + rng.randrange(6))
    rig.held_back = set()
    rig.scheduler.post(300)
    rig.run(rig.now_ms + 1_000)
    assert sorted(rig.handled) == list(range(301))
    assert max(rig.steps) <= CONFIG.step_max_events and 0 not in rig.steps[:1]
    assert rig.scheduler.statistics.events == 301 and len(rig.scheduler) == 0
