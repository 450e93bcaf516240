"""The replicas that an unregistered broker leaves behind, as values and text.

An unregistered broker leaves every ISR but keeps its replicas (as in Kafka): their partitions are
under-replicated until the replicas move. Owns the selection of these partitions and its text. Does not
unregister anything; `cli.admin.brokers` does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from metaquorum.runtime.kafka.admin.topics import DescribedTopic

NAMED_MAX = 5


class LeftBehind(msgspec.Struct, frozen=True, kw_only=True):
    """Partitions, as `topic-index`, that have a replica on the broker. `alone`:
    those with no other replica."""

    replicas: tuple[str, ...] = ()
    alone: tuple[str, ...] = ()


def left_behind(topics: Sequence[DescribedTopic], broker_id: int) -> LeftBehind:
    """The partitions of `topics` with a replica on the broker."""
    found = [
        (f"{topic.name}-{partition.index}", len(partition.replicas) == 1)
        for topic in topics
        for partition in topic.partitions
        if broker_id in partition.replicas
    ]
    return LeftBehind(
        replicas=tuple(name for name, _ in found), alone=tuple(name for name, alone in found if alone)
    )


def left_behind_json(left: LeftBehind) -> dict[str, Any]:
    """The total counts, and the names of the first few."""
    return {
        "underReplicated": len(left.replicas),
        "withoutAnotherReplica": len(left.alone),
        "partitions": list(left.replicas[:NAMED_MAX]),
    }


def left_behind_text(left: LeftBehind, broker_id: int) -> str:
    """One line: how many, which, and what to do."""
    count = len(left.replicas)
    stay = "1 replica stays" if count == 1 else f"{count} replicas stay"
    lonely = ""
    if left.alone:
        lonely = f"; the only replica of {_named(left.alone)}"
    return (
        f"{stay} assigned to broker {broker_id} and under-replicated: {_named(left.replicas)}{lonely}; move"
        f" them to other brokers: metaquorum partitions plan --drain {broker_id}, then partitions reassign"
    )


def _named(names: Sequence[str]) -> str:
    more = len(names) - NAMED_MAX
    return ", ".join(names[:NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
