"""Mistakes in when a node's driver takes a step, and in what a step contains."""

from __future__ import annotations

from tests.planted.bug import Bug

SCHEDULER = "tests/unit/runtime/test_scheduler.py"
SCHEDULER_FILE = "runtime/driver/scheduler.py"
DRIVER = "tests/unit/runtime/test_driver.py"

SCHEDULER_BUGS = (
    Bug(
        name="step-drops-the-rest",
        breaks="an event that a step has no room for is handled by the next",
        source="docs/architecture.md, Steps",
        file=SCHEDULER_FILE,
        old="        self.statistics.steps += 1\n",
        new="        self.statistics.steps += 1\n        inbox.clear()\n",
        caught_by=(SCHEDULER, "sim 0..12"),
    ),
    Bug(
        name="rest-waits-for-a-timer",
        breaks="a step that leaves events is followed by another at once",
        source="docs/architecture.md, Steps",
        file=SCHEDULER_FILE,
        old="        else:\n            self.due_ms = now_ms\n",
        new="        else:\n            self.due_ms = deadline_ms or now_ms\n",
        caught_by=(SCHEDULER,),
    ),
    Bug(
        name="newest-event-first",
        breaks="events are handled in the order of arrival",
        source="docs/architecture.md, Steps",
        file=SCHEDULER_FILE,
        old="handle(inbox.popleft(), now_ms, wall_ms)",
        new="handle(inbox.pop(), now_ms, wall_ms)",
        caught_by=(SCHEDULER,),
    ),
    Bug(
        name="linger-without-end",
        breaks="a step waits for more events for a bounded time",
        source="docs/architecture.md, Steps",
        file=SCHEDULER_FILE,
        old="if len(self._inbox) > self._seen and now_ms < until_ms:",
        new="if len(self._inbox) > self._seen:",
        caught_by=(SCHEDULER,),
    ),
    Bug(
        name="gap-passes-unnoticed",
        breaks="after a pause no silence is judged before the sockets have been read",
        source="docs/architecture.md, Steps; KAFKA-15489",
        file=SCHEDULER_FILE,
        old="        if gap_ms <= self.config.gap_ms:\n",
        new="        if gap_ms >= 0:\n",
        caught_by=(SCHEDULER,),
    ),
    Bug(
        name="slices-without-a-pause",
        breaks="work in slices leaves sockets as much time as it takes",
        source="docs/architecture.md, Steps",
        file=SCHEDULER_FILE,
        old="            self._tick_from_ms = now_ms + min(took_ms, self.config.pause_max_ms)\n",
        new="            self._tick_from_ms = now_ms\n",
        caught_by=(SCHEDULER,),
    ),
    Bug(
        name="tick-put-off-for-ever",
        breaks="a tick is put off once, however busy the node is",
        source="docs/architecture.md, Steps",
        file=SCHEDULER_FILE,
        old="        if self._tick_from_ms is None and took_ms >= self.config.long_ms:\n",
        new="        if took_ms >= self.config.long_ms:\n",
        caught_by=(SCHEDULER,),
    ),
    Bug(
        name="unknown-effect-is-dropped",
        breaks="a node's effects are carried out, or its process ends",
        source="runtime/driver/node_runner.py",
        file="runtime/driver/node_runner.py",
        old='raise TypeError(f"no part of this process carries out {type(effect).__name__}")',
        new="continue",
        caught_by=(DRIVER,),
    ),
)
