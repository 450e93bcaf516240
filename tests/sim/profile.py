"""Which faults a simulated run has, drawn as one swarm profile per seed.

A profile turns whole kinds of faults off as often as it turns them on (swarm testing, Groce et al. 2012): a
run with crashes and without message loss reaches states that a run with everything never does.
"""

from __future__ import annotations

import random

import msgspec


class FaultProfile(msgspec.Struct, frozen=True, kw_only=True):
    """Rates are per second of simulated time for the whole world, chances are 0..1, durations are ms."""

    controllers: int
    brokers: int
    clients: int
    safety_ms: int
    message_delay_ms: tuple[int, int]
    loss_chance: float
    duplicate_chance: float
    slow_message_chance: float
    slow_message_ms: int
    partition_rate: float
    one_way_chance: float
    partition_ms: tuple[int, int]
    crash_rate: float
    crash_while_writing_factor: int
    down_ms: tuple[int, int]
    pause_rate: float
    pause_ms: tuple[int, int]
    broker_stop_rate: float
    sync_ms: tuple[int, int]
    slow_disk_chance: float
    slow_disk_ms: int
    clock_drift_ppm: int
    clock_offset_ms: int
    client_pause_ms: tuple[int, int]
    snapshot_every_bytes: int
    transfer_rate: float
    forged_heartbeat_rate: float


def draw_profile(rng: random.Random) -> FaultProfile:
    """Draws one profile. Every kind of fault is off in about half of the runs."""

    def maybe(value: float, chance: float = 0.5) -> float:
        return value if rng.random() < chance else 0.0

    return FaultProfile(
        controllers=rng.choice((3, 3, 3, 5)),
        brokers=rng.choice((1, 2, 3)),
        clients=rng.choice((1, 2, 3)),
        safety_ms=rng.choice((8_000, 15_000, 25_000)),
        message_delay_ms=rng.choice(((0, 1), (0, 3), (1, 20))),
        loss_chance=maybe(rng.choice((0.01, 0.1, 0.3))),
        duplicate_chance=maybe(0.05),
        slow_message_chance=maybe(rng.choice((0.02, 0.1))),
        slow_message_ms=rng.choice((50, 400, 2_500)),
        partition_rate=maybe(rng.choice((0.1, 0.4))),
        one_way_chance=rng.choice((0.0, 0.5, 1.0)),
        partition_ms=(200, 5_000),
        crash_rate=maybe(rng.choice((0.1, 0.4, 1.0))),
        crash_while_writing_factor=rng.choice((1, 10)),
        down_ms=rng.choice(((50, 500), (200, 6_000))),
        pause_rate=maybe(rng.choice((0.1, 0.3))),
        pause_ms=rng.choice(((100, 1_500), (500, 6_000))),
        broker_stop_rate=maybe(0.1),
        sync_ms=rng.choice(((0, 1), (0, 5), (2, 30))),
        slow_disk_chance=maybe(0.05),
        slow_disk_ms=rng.choice((50, 600)),
        clock_drift_ppm=int(maybe(rng.choice((200, 20_000)))),
        clock_offset_ms=int(maybe(100_000)),
        client_pause_ms=rng.choice(((1, 30), (20, 300))),
        snapshot_every_bytes=rng.choice((1_500, 6_000, 1 << 20)),
        transfer_rate=maybe(0.1),
        forged_heartbeat_rate=maybe(0.3, 0.25),
    )


def calm_profile(
    *, controllers: int = 3, brokers: int = 2, snapshot_every_bytes: int = 1 << 20
) -> FaultProfile:
    """No faults at all: for scenarios that add their own."""
    return FaultProfile(
        controllers=controllers,
        brokers=brokers,
        clients=0,
        safety_ms=0,
        message_delay_ms=(0, 2),
        loss_chance=0.0,
        duplicate_chance=0.0,
        slow_message_chance=0.0,
        slow_message_ms=0,
        partition_rate=0.0,
        one_way_chance=0.0,
        partition_ms=(0, 0),
        crash_rate=0.0,
        crash_while_writing_factor=1,
        down_ms=(100_000_000, 100_000_000),
        pause_rate=0.0,
        pause_ms=(0, 0),
        broker_stop_rate=0.0,
        sync_ms=(0, 2),
        slow_disk_chance=0.0,
        slow_disk_ms=0,
        clock_drift_ppm=0,
        clock_offset_ms=0,
        client_pause_ms=(1, 1),
        snapshot_every_bytes=snapshot_every_bytes,
        transfer_rate=0.0,
        forged_heartbeat_rate=0.0,
    )
