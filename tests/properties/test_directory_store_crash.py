"""Whatever is done in a log directory and whenever the power fails: what was reported as durable is there."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.faulty_disk import PowerLossError
from tests.unit.broker.directory_bench import Bench

STEPS: dict[str, Callable[[Bench], object]] = {
    "create": Bench.create,
    "append": Bench.append,
    "sync": Bench.sync,
    "checkpoint": Bench.checkpoint,
    "busy_sync": Bench.busy_sync,
    "cut": Bench.cut,
    "start_over": Bench.start_over,
    "retention": Bench.retention,
    "trim": Bench.trim,
    "remove": Bench.remove,
    "tick": Bench.tick,
    "restart": Bench.restart,
    "kill": Bench.kill,
    "power_loss": Bench.power_loss,
}
WEIGHTED = ["append"] * 8 + ["sync"] * 3 + ["power_loss", "checkpoint", "cut"] + list(STEPS)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.lists(st.sampled_from(WEIGHTED), max_size=40))
def test_any_history_with_power_losses_keeps_what_was_synced(seed: int, steps: list[str]) -> None:
    bench = Bench(seed)
    for step in steps:
        STEPS[step](bench)
        bench.check()
    bench.power_loss()


def history(seed: int) -> list[str]:
    rng = random.Random(seed)
    changing = [step for step in WEIGHTED if step not in ("kill", "power_loss")]
    return ["create", "append", "append", "sync"] + [rng.choice(changing) for _ in range(14)]


@pytest.mark.parametrize("seed", range(8))
def test_power_loss_at_every_operation_of_a_history(seed: int) -> None:
    """Every point between any two changes of the disk, two outcomes each; then everything goes on."""
    steps = history(seed)
    crash_after = 0
    crashed = True
    while crashed:
        for outcome in range(2):
            bench = Bench(seed, crash_after)
            bench.disk.rng.seed(outcome)
            crashed = False
            try:
                for step in steps:
                    STEPS[step](bench)
            except PowerLossError:
                crashed = True
            bench.power_loss()
            bench.append()
            bench.sync()
            bench.check()
        crash_after += 1
    assert crash_after > 30


def test_a_second_power_loss_while_the_directory_is_opened() -> None:
    for crash_after in range(10):
        for seed in range(10):
            bench = Bench(seed)
            for step in ("create", "append", "sync", *["append"] * 12, "cut", "append", "remove", "create"):
                STEPS[step](bench)
            bench.append()
            bench.disk = bench.disk.crash()
            bench.store = None
            bench.disk.crash_after = crash_after
            try:
                bench.opened()
            except PowerLossError:
                bench.disk = bench.disk.crash()
                bench.store = None
            bench.disk.crash_after = None
            bench.check_after_crash()
