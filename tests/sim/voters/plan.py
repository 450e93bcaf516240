"""The plan of a run in which voters are added and removed: how many nodes, which changes, which losses of
memory.

Drawn from the seed alone, one swarm profile per seed: whole kinds of changes and faults are off as often as
on.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from msgspec.structs import replace

from tests.sim.profile import FaultProfile, draw_profile

VOTERS_FROM = 4_000
"""Seeds from here on add and remove voters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VoterPlan:
    """Rates are per second of simulated time for the whole world, durations are ms."""

    voters: int
    spares: int
    """Controllers that only observe at first."""
    formatted: bool
    """Whether voters are in the first checkpoint (kraft.version 1); otherwise they are configured (0) until
    an upgrade."""
    operator_pause_ms: tuple[int, int]
    upgrade: bool
    remove: bool
    remove_leader: bool
    empty_rate: float
    rename_rate: float
    rollback_rate: float
    lag_max: int

    @property
    def controllers(self) -> int:
        return self.voters + self.spares


def draw_plan(seed: int) -> VoterPlan:
    """The plan of a seed."""
    rng = random.Random(f"voters of {seed}")

    def maybe(value: float, chance: float = 0.5) -> float:
        return value if rng.random() < chance else 0.0

    voters = rng.choice((1, 1, 2, 2, 3, 3, 3, 3, 4, 5, 5, 7))
    return VoterPlan(
        voters=voters,
        spares=0 if voters == 7 else rng.choice((1, 1, 2)) if voters < 5 else rng.choice((0, 1)),
        formatted=rng.random() < 0.7,
        operator_pause_ms=rng.choice(((50, 300), (200, 900))),
        upgrade=rng.random() < 0.8,
        remove=rng.random() < 0.8,
        remove_leader=rng.random() < 0.6,
        empty_rate=maybe(rng.choice((0.2, 0.5)), 0.5),
        rename_rate=maybe(0.2, 0.4),
        rollback_rate=maybe(rng.choice((0.3, 0.6)), 0.5),
        lag_max=rng.choice((3, 20, 1_000)),
    )


def draw_faults(seed: int, plan: VoterPlan) -> FaultProfile:
    """The other faults: those of every run, for a shorter time and with more of what can affect a change."""
    rng = random.Random(f"faults beside voters of {seed}")
    drawn = draw_profile(rng)
    return replace(
        drawn,
        controllers=plan.controllers,
        brokers=1,
        clients=1,
        safety_ms=rng.choice((4_000, 7_000)),
        loss_chance=min(drawn.loss_chance, 0.1),
        partition_rate=rng.choice((0.0, 0.4, 0.8)),
        crash_rate=rng.choice((0.0, 0.4, 1.0)),
        down_ms=rng.choice(((50, 500), (200, 2_000))),
        slow_message_ms=min(drawn.slow_message_ms, 400),
        pause_ms=(100, 1_500),
        client_pause_ms=(20, 200),
        broker_stop_rate=0.0,
        forged_heartbeat_rate=0.0,
        transfer_rate=rng.choice((0.0, 0.3)),
    )
