"""What a test does to a cluster: each fault is an event, and heals when its context ends.

The faults in force say in which state every node is to be. Whatever order they heal in, what they leave is
the same, and nothing waits for a node that another fault still keeps from serving.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Mapping
from types import TracebackType
from typing import Self

import msgspec

from metaquorum.raft.voters import majority
from metaquorum.testing.calls import CheckedCalls
from metaquorum.testing.errors import FORKED, ClusterError, ClusterTimeoutError
from metaquorum.testing.network import Delay, Pair
from metaquorum.testing.request_faults import RequestFault

PATIENCE_S = 0.2
"""A network or a disk that is later than this may keep nodes from serving."""


class ClusterEvent(msgspec.Struct, frozen=True, kw_only=True):
    """`wall_ms` is Unix time by the cluster's clock."""

    wall_ms: int
    text: str


class Effect(msgspec.Struct, frozen=True, kw_only=True):
    """What a fault does for as long as it is in force."""

    down: frozenset[int] = frozenset()
    """These nodes do not run, or are paused."""
    hampered: frozenset[int] = frozenset()
    """These may run, and may not serve or end by themselves."""
    cut: frozenset[Pair] = frozenset()
    """What the first one sends does not reach the second in time."""
    quota: tuple[str, Mapping[str, float]] | None = None
    """A client id, and its quota."""
    expired: str | None = None
    """Whose certificate has expired: a client's, or `BROKERS`."""


BROKERS = ""
NO_EFFECT = Effect()


def cut_effect(pairs: Collection[Pair], delay: Delay | None) -> Effect:
    """Of a fault of the network between nodes."""
    late_s = None if delay is None else sum(delay) / 1000
    return NO_EFFECT if late_s is not None and late_s <= PATIENCE_S else Effect(cut=frozenset(pairs))


def no_end() -> None:
    """Of a fault that is over with what it does."""


class ActiveFault:
    """A fault that is in force. Its context heals it at the end; `heal` does so at once, a second time does
    nothing."""

    def __init__(
        self,
        text: str,
        end: Callable[[], None],
        effect: Effect = NO_EFFECT,
        recover: Callable[[], None] = no_end,
    ) -> None:
        """`end` ends what it does, and `recover` waits for the cluster after it."""
        self.text = text
        self.effect = effect
        self._end: Callable[[], None] | None = end
        self.recover = recover
        self._lock = threading.Lock()
        self._pid = os.getpid()

    @property
    def is_in_force(self) -> bool:
        return self._end is not None

    def heal(self) -> None:
        """Ends it, and waits until the cluster has recovered from it, as far as other faults let it."""
        if self.end():
            self.recover()

    def end(self) -> bool:
        """Ends it, and waits for nothing; False: it had ended."""
        if os.getpid() != self._pid:
            raise ClusterError(FORKED)
        with self._lock:
            end, self._end = self._end, None
        if end is not None:
            end()
        return end is not None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if os.getpid() == self._pid:  # a fork leaves its contexts, too
            self.heal()


class ActiveRequestFault(ActiveFault, CheckedCalls):
    """A fault of requests, which counts those that it met."""

    def __init__(
        self,
        text: str,
        end: Callable[[], None],
        fault: RequestFault,
        timeout_s: float,
        doing: Callable[[], str],
    ) -> None:
        """`doing`: what the cluster does, for a message."""
        super().__init__(text, end)
        self._doing = doing
        self._fault = fault
        self._timeout_s = timeout_s

    @property
    def hits(self) -> int:
        """How many requests it has met so far."""
        return self._fault.hits

    def wait(self, hits: int = 1) -> None:
        """Returns once it has met this number of requests. Raises ClusterTimeoutError."""
        with self._fault.changed:
            if not self._fault.changed.wait_for(lambda: self._fault.hits >= hits, self._timeout_s):
                found = self._fault.hits
                raise ClusterTimeoutError(
                    f"waited {self._timeout_s:g} s for {hits} requests, and {found} came: {self.text};"
                    f" {self._doing()}"
                )

    def remove(self) -> None:
        """As `heal`: later requests are answered as ever, and held ones go on."""
        self.heal()


class FaultsInForce:
    """The faults of a cluster that have not healed, oldest first. Thread-safe."""

    def __init__(self) -> None:
        self._faults: tuple[ActiveFault, ...] = ()
        self._lock = threading.Lock()

    def add(self, fault: ActiveFault) -> None:
        with self._lock:
            self._faults = (*self.all, fault)

    @property
    def all(self) -> tuple[ActiveFault, ...]:
        return tuple(each for each in self._faults if each.is_in_force)

    @property
    def effects(self) -> list[Effect]:
        return [each.effect for each in self.all]

    def of_node(self, node: int) -> list[ActiveFault]:
        """Those that keep a node down."""
        return [each for each in self.all if node in each.effect.down]

    @property
    def down(self) -> frozenset[int]:
        """The nodes that do not run."""
        return frozenset().union(*(each.down for each in self.effects))

    def quota_of(self, client: str) -> dict[str, float]:
        """Of two faults, the newer one counts."""
        quota: dict[str, float] = {}
        for effect in self.effects:
            if effect.quota is not None and effect.quota[0] == client:
                quota |= effect.quota[1]
        return quota

    def silent(self, nodes: Collection[int]) -> frozenset[int]:
        """The nodes that exchange nothing with any other one."""
        cut = frozenset().union(*(each.cut for each in self.effects))
        alone = (
            node
            for node in nodes
            if len(nodes) > 1
            and all({(node, other), (other, node)} & cut for other in nodes if other != node)
        )
        return self.down.union(alone)

    def able(self, nodes: Collection[int], voters: Collection[int], voters_in_all: int) -> frozenset[int]:
        """The nodes that no fault keeps from serving, whichever voter is elected. `voters`: those that have
        their disks, of `voters_in_all`."""
        effects = self.effects
        cut = frozenset().union(*(each.cut for each in effects))
        kept = frozenset().union(*(each.down | each.hampered for each in effects))
        well = [node for node in nodes if node not in kept]

        def reach(node: int, others: Collection[int]) -> list[int]:
            return [other for other in others if not {(node, other), (other, node)} & cut]

        electors = [node for node in well if node in voters]
        needed = majority(voters_in_all)
        candidates = [node for node in electors if len(reach(node, electors)) >= needed]
        if not candidates:
            return frozenset()
        return frozenset(node for node in well if len(reach(node, candidates)) == len(candidates))
