"""What leaders acknowledged to their producers, and that every later leader has it.

Drops only what the cluster never promised to keep: what an unclean election gave up, and what was on a lost
disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

PartitionKey = tuple[bytes, int]


class BrokenPromise(Exception):
    """Acknowledged records are gone."""


class GivesUp(Protocol):
    """Is notified when acknowledged records may be lost."""

    def given_up(self, key: PartitionKey, below_epoch: int) -> None: ...


class Promises:
    """Logs are lists of numbers that are never written twice."""

    def __init__(self) -> None:
        self._kept: dict[PartitionKey, dict[int, tuple[int, ...]]] = {}
        self._void_below: dict[PartitionKey, int] = {}
        self._began: dict[PartitionKey, tuple[int, tuple[int, ...], int]] = {}
        self.acknowledged = 0

    def acknowledge(self, key: PartitionKey, leader_epoch: int, prefix: Sequence[int]) -> None:
        """The whole ISR has `prefix`. A leader that was replaced meanwhile may acknowledge only what its
        successor has."""
        if leader_epoch < self._void_below.get(key, 0):
            return
        kept = tuple(prefix)
        epoch, log, leader = self._began.get(key, (-1, (), -1))
        if epoch > leader_epoch and log[: len(kept)] != kept:
            raise BrokenPromise(
                f"partition {_name(key)}: the leader of epoch {leader_epoch} acknowledged {len(kept)}"
                f" records, and broker {leader} leads since epoch {epoch} without all of them"
            )
        self._kept.setdefault(key, {})[leader_epoch] = kept
        self.acknowledged += 1

    def leader_begins(self, key: PartitionKey, leader_epoch: int, log: Sequence[int], broker_id: int) -> None:
        """Raises BrokenPromise unless the leader has what earlier leaders acknowledged."""
        own = tuple(log)
        void_below = self._void_below.get(key, 0)
        for epoch, prefix in self._kept.get(key, {}).items():
            if void_below <= epoch < leader_epoch and own[: len(prefix)] != prefix:
                raise BrokenPromise(
                    f"partition {_name(key)}: broker {broker_id} leads in epoch {leader_epoch} with"
                    f" {len(own)} records, and the leader of epoch {epoch} acknowledged {len(prefix)},"
                    " which are not the same"
                )
        if leader_epoch > self._began.get(key, (-1, (), -1))[0]:
            self._began[key] = (leader_epoch, own, broker_id)

    def given_up(self, key: PartitionKey, below_epoch: int) -> None:
        """What was acknowledged in epochs below is no longer promised."""
        self._void_below[key] = max(below_epoch, self._void_below.get(key, 0))


def _name(key: PartitionKey) -> str:
    return f"{key[0].hex()[:8]}-{key[1]}"
