"""A network between named hosts that delays, loses, duplicates, reorders and cuts, also in one direction
only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.sim.engine import Engine
from tests.sim.profile import FaultProfile


class Network:
    """Delivers closures. It does not know which hosts are up: a message to a dead host calls `lost`."""

    def __init__(self, engine: Engine, profile: FaultProfile) -> None:
        self._engine = engine
        self._profile = profile
        self._cut: dict[tuple[str, str], int] = {}
        self.perfect = False

    def send(self, source: str, target: str, deliver: Callable[[], None], *, once: bool = False) -> None:
        """Delivers to `target` some time later, perhaps never, and perhaps twice unless `once`."""
        if self.perfect:
            self._engine.after(0.3, deliver)
            return
        if self.is_cut(source, target):
            return
        profile, rng = self._profile, self._engine.rng
        if rng.random() < profile.loss_chance:
            return
        self._engine.after(self._delay(), self._unless_cut(source, target, deliver))
        if rng.random() < profile.duplicate_chance and not once:
            self._engine.after(self._delay(), self._unless_cut(source, target, deliver))

    def repeats_late(self) -> bool:
        """Whether a second copy of a message arrives much later."""
        return not self.perfect and self._engine.rng.random() < self._profile.duplicate_chance / 2

    def _delay(self) -> float:
        low, high = self._profile.message_delay_ms
        rng = self._engine.rng
        delay = low + rng.random() * (high - low) + 0.05
        if rng.random() < self._profile.slow_message_chance:
            delay += rng.random() * self._profile.slow_message_ms
        return delay

    def _unless_cut(self, source: str, target: str, deliver: Callable[[], None]) -> Callable[[], None]:
        def arrive() -> None:
            if not self.is_cut(source, target):
                deliver()

        return arrive

    def is_cut(self, source: str, target: str) -> bool:
        return self._cut.get((source, target), 0) > 0

    def partition(self, side: Sequence[str], others: Sequence[str], *, one_way: bool, for_ms: float) -> None:
        """Cuts `side` off from `others` for a while; one way: what `side` sends is lost, what it receives is
        not."""
        pairs = [(a, b) for a in side for b in others]
        if not one_way:
            pairs += [(b, a) for a, b in pairs]
        for pair in pairs:
            self._cut[pair] = self._cut.get(pair, 0) + 1
        self._engine.trace("net", f"cut {','.join(side)} {'->' if one_way else '<->'} {','.join(others)}")

        def mend() -> None:
            for pair in pairs:
                self._cut[pair] = max(0, self._cut.get(pair, 0) - 1)
            self._engine.trace("net", f"mended {','.join(side)}")

        self._engine.after(for_ms, mend)

    def heal(self) -> None:
        """From now on every message arrives, in order and soon."""
        self._cut.clear()
        self.perfect = True
