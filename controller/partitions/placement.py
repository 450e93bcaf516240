"""Which brokers get the replicas of new partitions: striped over racks, and over the brokers of each rack.

Partition leaders rotate over the racks and over the brokers of each rack. The replicas of one partition are
in as many racks as there are. A fenced broker is used only if no other broker is left in its rack, and never
leads. After as many partitions as there are unfenced brokers, everything is shuffled, so that the same
brokers are not always combined.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from random import Random

import msgspec


class UsableBroker(msgspec.Struct, frozen=True):
    """A broker that may hold new replicas. `fenced`: only as a last resort."""

    broker_id: int
    rack: str | None = None
    fenced: bool = False


class Candidates(tuple[UsableBroker, ...]):
    """Brokers that may hold new replicas. What a placement needs to know of all of them is computed once, and
    serves every topic until brokers change."""

    @staticmethod
    def of(brokers: Sequence[UsableBroker]) -> Candidates:
        """Candidates from these brokers."""
        return brokers if isinstance(brokers, Candidates) else Candidates(brokers)

    @cached_property
    def active(self) -> frozenset[int]:
        """Those that may lead and start in sync."""
        return frozenset([each.broker_id for each in self if not each.fenced])

    @cached_property
    def racks(self) -> tuple[tuple[list[int], list[int]], ...]:
        """Per rack, by name, the ascending ids of fenced and of other brokers; brokers without a rack
        first."""
        by_rack: dict[str | None, tuple[list[int], list[int]]] = {}
        for each in sorted(self, key=lambda broker: broker.broker_id):
            fenced, unfenced = by_rack.setdefault(each.rack, ([], []))
            (fenced if each.fenced else unfenced).append(each.broker_id)
        names = sorted(by_rack, key=lambda name: (name is not None, name or ""))
        return tuple([by_rack[name] for name in names])


class _Ring:
    """Returns brokers in turn, each once per partition; every partition begins one broker later."""

    __slots__ = ("brokers", "index", "offset", "round")

    def __init__(self, brokers: list[int], rng: Random) -> None:
        self.brokers = brokers
        self.offset = rng.randrange(len(brokers)) if brokers else 0
        self.index = 0
        self.round = 0

    def next(self, round_: int) -> int:
        """The next broker of this round; -1 if all were returned."""
        brokers = self.brokers
        count = len(brokers)
        if not count:
            return -1
        if self.round != round_:
            self.round = round_
            self.index = 0
            self.offset = (self.offset + 1) % count
        index = self.index
        if index >= count:
            return -1
        self.index = index + 1
        return brokers[(index + self.offset) % count]

    def shuffle(self, rng: Random) -> None:
        """Shuffles the order, for good."""
        self.brokers = [*self.brokers]
        rng.shuffle(self.brokers)


class _Rack:
    __slots__ = ("fenced", "unfenced")

    def __init__(self, fenced: list[int], unfenced: list[int], rng: Random) -> None:
        self.fenced = _Ring(fenced, rng)
        self.unfenced = _Ring(unfenced, rng)

    def next(self, round_: int) -> int:
        found = self.unfenced.next(round_)
        return found if found >= 0 else self.fenced.next(round_)


class StripedPlacer:
    """Places the partitions of one topic. `candidates` are distinct and in any order."""

    def __init__(self, candidates: Sequence[UsableBroker], rng: Random) -> None:
        self._rng = rng
        known = Candidates.of(candidates)
        self._racks = [_Rack(fenced, unfenced, rng) for fenced, unfenced in known.racks]
        self.total = len(known)
        self.unfenced = len(known.active)
        self._first = rng.randrange(len(self._racks)) if self._racks else 0
        self._round = 0

    def place(self, replication_factor: int) -> tuple[int, ...]:
        """Replicas of the next partition, the preferred leader first, which is unfenced.

        Raises ValueError unless 1 <= `replication_factor` <= `total` and a broker is unfenced.
        """
        if not 1 <= replication_factor <= self.total or not self.unfenced:
            raise ValueError(
                f"{replication_factor} replicas cannot be placed on {self.total} brokers, "
                f"{self.unfenced} of them unfenced"
            )
        if self._round == self.unfenced > 1:
            self._shuffle()
        racks, round_ = self._racks, self._round
        count = len(racks)
        self._first %= count
        led_by = self._first
        while (leader := racks[led_by].unfenced.next(round_)) < 0:
            led_by = (led_by + 1) % count
        replicas = [leader]
        rack = self._first
        while len(replicas) < replication_factor:
            # The leader's rack is passed over once: it already has its replica.
            broker_id = -1 if rack == led_by else racks[rack].next(round_)
            if rack == led_by:
                led_by = -1
            if broker_id >= 0:
                replicas.append(broker_id)
            rack = (rack + 1) % count
        self._round += 1
        self._first += 1
        return tuple(replicas)

    def _shuffle(self) -> None:
        self._rng.shuffle(self._racks)
        for rack in self._racks:
            rack.unfenced.shuffle(self._rng)
            rack.fenced.shuffle(self._rng)
        self._round = 0


def place(
    candidates: Sequence[UsableBroker], partitions: int, replication_factor: int, rng: Random
) -> list[tuple[int, ...]]:
    """Replica lists of `partitions` new partitions; see `StripedPlacer` for the rules and errors."""
    placer = StripedPlacer(candidates, rng)
    return [placer.place(replication_factor) for _ in range(partitions)]
