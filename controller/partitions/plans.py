"""Plans of replica moves: empty a broker, or spread replicas evenly; and how much a plan moves.

Moves as few replicas as possible, keeps replicas of a partition on different racks if there are enough, and
never gives a partition two replicas on one broker.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

PartitionName = tuple[str, int]
Assignment = dict[PartitionName, tuple[int, ...]]
Held = dict[int, list[PartitionName | None]]
"""Partitions by broker, in the order in which they are looked at; None: it has moved away."""
Passed = dict[tuple[int, int], int]
"""By broker and goal: how many of the broker's partitions cannot go there, as far as was checked."""


class PlanError(ValueError):
    """The request cannot be planned; the text says why and what to do."""


class PlanSize(msgspec.Struct, frozen=True, kw_only=True):
    """How much a plan moves: partitions that change at all, replicas that are copied, and replicas that
    arrive at each broker."""

    partitions: int
    replicas: int
    arriving: Mapping[int, int]


def drain(current: Assignment, racks: Mapping[int, str | None], broker_id: int) -> Assignment:
    """The partitions of `broker_id` with another broker in its place. `racks` are the brokers that may get
    replicas. Raises PlanError if no broker remains for a partition."""
    targets = {other: rack for other, rack in racks.items() if other != broker_id}
    load = _load(current, targets)
    planned: Assignment = {}
    for name, replicas in sorted(current.items()):
        if broker_id not in replicas:
            continue
        position = replicas.index(broker_id)
        others = replicas[:position] + replicas[position + 1 :]
        free = [other for other in targets if other not in others]
        if not free:
            raise PlanError(
                f"no broker remains for {name[0]}-{name[1]}: it has {len(replicas)} replicas, and "
                f"{len(targets)} other brokers are running; start more, or lower its replication factor"
            )
        chosen = _least_loaded(free, others, targets, load)
        load[chosen] += 1
        planned[name] = (*replicas[:position], chosen, *replicas[position + 1 :])
    return planned


def spread(current: Assignment, racks: Mapping[int, str | None]) -> Assignment:
    """Moves of single replicas from brokers that hold many to those that hold few, until the numbers differ
    by at most one or no move helps."""
    load = _load(current, racks)
    planned: Assignment = {}
    held: Held = {broker: [] for broker in racks}
    for name, replicas in sorted(current.items()):
        for replica in replicas:
            if replica in held:
                held[replica].append(name)
    now = dict(current)
    passed: Passed = {}
    looked_again: set[int] = set()
    stuck: set[int] = set()
    while True:
        movable = [broker_id for broker_id in load if broker_id not in stuck]
        fullest = max(movable, key=lambda one: (load[one], -one), default=None)
        if fullest is None or load[fullest] - min(load.values()) <= 1:
            return planned
        move = _best_move(held[fullest], now, racks, load, fullest, passed)
        if move is None:
            # The obstacle for a partition that was passed over may have moved since.
            (stuck if fullest in looked_again else looked_again).add(fullest)
            for goal in racks:
                passed.pop((fullest, goal), None)
            continue
        looked_again.discard(fullest)
        name, chosen = move
        now[name] = planned[name] = tuple([chosen if one == fullest else one for one in now[name]])
        held[chosen].append(name)
        load[fullest] -= 1
        load[chosen] += 1


def _best_move(
    names: list[PartitionName | None],
    now: Assignment,
    racks: Mapping[int, str | None],
    load: Mapping[int, int],
    source: int,
    passed: Passed,
) -> tuple[PartitionName, int] | None:
    """A partition of `source`, which leaves `names`, and the broker that takes it, so that the numbers come
    closer; None if no move does. Continues where the last search for the same goal ended, so a plan costs
    O(replicas)."""
    for goal in sorted(load, key=lambda one: (load[one], one)):
        if load[source] - load[goal] <= 1:
            return None
        for index in range(passed.get((source, goal), 0), len(names)):
            name = names[index]
            if name is None:
                continue
            others = [one for one in now[name] if one != source]
            if goal in others or _crowding(goal, others, racks) > _crowding(source, others, racks):
                continue
            names[index] = None
            passed[source, goal] = index + 1
            return name, goal
        passed[source, goal] = len(names)
    return None


def _least_loaded(
    free: Iterable[int], others: Sequence[int], racks: Mapping[int, str | None], load: Mapping[int, int]
) -> int:
    return min(free, key=lambda one: (_crowding(one, others, racks), load[one], one))


def _crowding(broker_id: int, others: Sequence[int], racks: Mapping[int, str | None]) -> int:
    """How many of `others` are on the broker's rack; brokers without a rack crowd none."""
    rack = racks.get(broker_id)
    return 0 if rack is None else sum(racks.get(other) == rack for other in others)


def _load(current: Assignment, brokers: Iterable[int]) -> dict[int, int]:
    load = dict.fromkeys(sorted(brokers), 0)
    for replicas in current.values():
        for replica in replicas:
            if replica in load:
                load[replica] += 1
    return load


def plan_size(current: Assignment, planned: Assignment) -> PlanSize:
    """What `planned` copies."""
    arriving: dict[int, int] = {}
    changed = 0
    for name, target in planned.items():
        before = current.get(name, ())
        changed += before != target
        for replica in set(target) - set(before):
            arriving[replica] = arriving.get(replica, 0) + 1
    return PlanSize(
        partitions=changed,
        replicas=sum(arriving.values()),
        arriving=dict(sorted(arriving.items())),
    )
