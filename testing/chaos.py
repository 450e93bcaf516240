"""A schedule of faults that a seed repeats, and the thread that carries it out during a test."""

from __future__ import annotations

import contextlib
import math
import random
import threading
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from metaquorum.testing.errors import ClusterError
from metaquorum.testing.healing import ActiveFault

KILL, CUT, SLOW_DISK = "kill", "cut", "slow disk"


class Chaos(msgspec.Struct, frozen=True, kw_only=True):
    """How many faults of each kind a cluster gets while a test runs, one at a time: nodes that are killed and
    start again, nodes that are isolated from the others, and slow disks. Each lasts between the two
    `lasts_s`, with a pause between the two `pause_s` before it, in seconds of real time."""

    kills: int = 0
    cuts: int = 0
    slow_disks: int = 0
    lasts_s: tuple[float, float] = (0.2, 1.0)
    pause_s: tuple[float, float] = (0.1, 0.5)

    def schedule(self, rng: random.Random, nodes: Sequence[int]) -> tuple[ChaosStep, ...]:
        """The faults in their order. Raises ClusterError for counts or times that cannot be."""
        counts = {KILL: self.kills, CUT: self.cuts, SLOW_DISK: self.slow_disks}
        for kind, count in counts.items():
            if count < 0:
                raise ClusterError(f"chaos has {count} times {kind}: write 0 or more")
        for low, high in (self.lasts_s, self.pause_s):
            if not 0 <= low <= high < math.inf:
                raise ClusterError(f"chaos has times from {low:g} to {high:g} s: write the shorter one first")
        kinds = [kind for kind, count in counts.items() for _ in range(count)]
        rng.shuffle(kinds)
        return tuple(
            ChaosStep(
                kind=kind,
                node=rng.choice(nodes),
                pause_s=rng.uniform(*self.pause_s),
                lasts_s=rng.uniform(*self.lasts_s),
            )
            for kind in kinds
        )


class ChaosStep(msgspec.Struct, frozen=True, kw_only=True):
    """One fault of a schedule. Times in seconds."""

    kind: str
    node: int
    pause_s: float
    lasts_s: float


class Breakable(Protocol):
    """What chaos does to a cluster."""

    def kill(self, node: int) -> ActiveFault: ...

    def isolate(self, node: int) -> ActiveFault: ...

    def disk_slow(self, node: int, *, delay_s: float) -> ActiveFault: ...


class ChaosThread:
    """Carries out a schedule, unless it is ended before."""

    def __init__(self, cluster: Breakable, steps: Sequence[ChaosStep]) -> None:
        self._cluster = cluster
        self._steps = steps
        self._is_ended = threading.Event()
        self.is_over = threading.Event()
        """All faults were injected and healed."""
        self._thread = threading.Thread(target=self._run, name="kafka chaos", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Heals the fault in force, and begins no other."""
        self._is_ended.set()
        self._thread.join()

    def _run(self) -> None:
        for step in self._steps:
            if self._is_ended.wait(step.pause_s):
                break
            # The test itself may have broken this node: then this step is left out.
            with contextlib.suppress(ClusterError), self._fault(step):
                self._is_ended.wait(step.lasts_s)
        self.is_over.set()

    def _fault(self, step: ChaosStep) -> ActiveFault:
        faults: dict[str, Callable[[int], ActiveFault]] = {
            KILL: self._cluster.kill,
            CUT: self._cluster.isolate,
            SLOW_DISK: lambda node: self._cluster.disk_slow(node, delay_s=0.02),
        }
        return faults[step.kind](step.node)
