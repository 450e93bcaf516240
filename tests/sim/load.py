"""The load on partitions, directories and broker ids: one swarm profile per seed.

As in `profile`, each kind of load is off as often as it is on. Drawn from the seed alone, so that it takes
nothing from the random source of the faults.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

LOADED_FROM = 1_000
"""Seeds from here on run with load; those below run only the quorum and the brokers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Rates are per second of simulated time for the whole world, chances are 0..1, durations are ms."""

    brokers: int
    directories: int
    slice_records: int
    partitions_max: int
    operator_pause_ms: tuple[int, int]
    reassign: bool
    delete: bool
    unregister: bool
    unclean: bool
    elect: bool
    write_chance: float
    stale_chance: float
    stall_rate: float
    directory_failure_rate: float
    disk_loss_chance: float
    move_chance: float
    broker_crash_rate: float
    generated_ids: bool
    newcomer: bool
    moments_chance: float
    leads_without_lease: bool
    balance_ms: int


def draw_load(seed: int) -> Load:
    """The load of a seed."""
    rng = random.Random(f"load of {seed}")

    def maybe(value: float, chance: float = 0.5) -> float:
        return value if rng.random() < chance else 0.0

    generated_ids = rng.random() < 0.5
    return Load(
        brokers=rng.choice((2, 3, 3, 4)),
        directories=rng.choice((1, 2, 2, 3)),
        slice_records=rng.choice((1, 1, 2, 3, 50)),
        partitions_max=rng.choice((2, 3, 4, 4, 30)),
        operator_pause_ms=rng.choice(((50, 400), (200, 1_200))),
        reassign=rng.random() < 0.7,
        delete=rng.random() < 0.5,
        unregister=rng.random() < 0.3,
        unclean=rng.random() < 0.4,
        elect=rng.random() < 0.6,
        write_chance=rng.choice((0.1, 0.5)),
        stale_chance=maybe(0.05),
        stall_rate=maybe(0.4),
        directory_failure_rate=maybe(0.15),
        disk_loss_chance=maybe(0.5, 0.6),
        move_chance=maybe(0.005),
        broker_crash_rate=maybe(rng.choice((0.15, 0.4)), 0.6),
        generated_ids=generated_ids,
        newcomer=generated_ids and rng.random() < 0.5,
        moments_chance=maybe(0.15, 0.6),
        leads_without_lease=rng.random() < 0.5,
        balance_ms=rng.choice((1_500, 4_000)),
    )


def quiet_load(
    *,
    brokers: int = 3,
    directories: int = 2,
    slice_records: int = 1,
    generated_ids: bool = False,
    newcomer: bool = False,
) -> Load:
    """Leaders and followers, and nothing else: for scenarios that add their own."""
    return Load(
        brokers=brokers,
        directories=directories,
        slice_records=slice_records,
        partitions_max=4,
        operator_pause_ms=(100, 100),
        reassign=False,
        delete=False,
        unregister=False,
        unclean=False,
        elect=False,
        write_chance=0.3,
        stale_chance=0.0,
        stall_rate=0.0,
        directory_failure_rate=0.0,
        disk_loss_chance=0.0,
        move_chance=0.0,
        broker_crash_rate=0.0,
        generated_ids=generated_ids,
        newcomer=newcomer,
        moments_chance=0.0,
        leads_without_lease=False,
        balance_ms=1_500,
    )
