"""Whatever is done in a log directory and whenever power is lost: what was reported as durable is there."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaquorum.storage.errors import DiskError
from metaquorum.testing.faulty_file import PowerLossError
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
    """Every point between two changes of the disk, with two outcomes each; then the history continues."""
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


@pytest.mark.parametrize("then", ["kill", "power_loss"])
@pytest.mark.parametrize("seed", [3, 5])
def test_an_io_error_at_every_operation_of_a_history(seed: int, then: str) -> None:
    """Including reads and listings. The error names the directory; what was durable is there when the disk
    works again."""
    steps = history(seed)
    after = 0
    failed = True
    while failed:
        bench = Bench(seed)
        bench.disk.inject("/data/d0", after=after, count=1)
        failed = False
        try:
            for step in steps:
                STEPS[step](bench)
        except DiskError as error:
            failed = True
            assert error.directory.startswith("/data/d0")
        except AssertionError:
            # It failed while the directory was opened, or a read reported the problem.
            assert bench.found is not None and bench.found.problem is not None
            failed = True
        if bench.store is not None:
            bench.store.abandon()
        bench.disk = bench.disk.kill() if then == "kill" else bench.disk.crash()
        bench.store = None
        bench.check_after_crash()
        bench.append()
        bench.sync()
        bench.check()
        after += 1
    assert after > 60


@pytest.mark.parametrize("seed", range(6))
def test_power_loss_at_every_operation_of_a_checkpoint_keeps_the_aborted_transactions(seed: int) -> None:
    """A producer snapshot in its place means that the list below it is in its place too."""
    crash_after = 0
    crashed = True
    while crashed:
        bench = Bench(seed)
        key = bench.create()
        model = bench.models[key]
        bench.append(key)
        bench.checkpoint()  # from now on there is a recovery point
        known = bench.aborted(key)
        while bench.aborted(key) == known:
            bench.append(key)
        bench.sync()
        bench.disk.crash_after = crash_after
        crashed = False
        try:
            bench.checkpoint()
        except PowerLossError:
            crashed = True
        bench.disk.crash_after = None
        assert model.kept == model.end
        bench.power_loss()
        crash_after += 1
    assert crash_after > 5
