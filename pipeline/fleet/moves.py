"""Reassignments of a synthetic cluster: replicas that move to other brokers, or whose move is cancelled.

Owns how a move is written (KIP-455: adding and removing replicas, then the target once the new ones are
in sync) and how it ends. The columns hold both old and new replicas meanwhile. Knows no other
incidents; `incidents` has them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from metaquorum.metadata.records.types import PartitionChangeRecord
from metaquorum.pipeline.fleet.cluster import Cluster
from metaquorum.pipeline.fleet.incidents import INCIDENTS, SECOND_MS, some_replicated
from metaquorum.pipeline.fleet.partitions import NO_BROKER, WIDTH

MOST = 20
"""Most partitions in one reassignment."""


def _replicas(cluster: Cluster, row: int) -> list[tuple[int, int]]:
    """(broker, number of its directory) of every replica."""
    at = cluster.partitions.at
    pairs = zip(at.replicas[row].tolist(), at.directory[row].tolist(), strict=True)
    return [(broker, directory) for broker, directory in pairs if broker != NO_BROKER]


def _write(cluster: Cluster, row: int, replicas: list[tuple[int, int]], isr: set[int], **fields: Any) -> int:
    """One record with new replicas for `row` (and ISR and leader if they differ). Returns its offset."""
    partitions, at = cluster.partitions, cluster.partitions.at
    ids = tuple(broker for broker, _ in replicas)
    before, leader = set(partitions.isr_of(row)), int(at.leader[row])
    ordered = tuple(one for one in ids if one in isr)
    new_leader = leader if leader in isr else ordered[0]
    led = new_leader != leader
    offset = cluster.log.records(
        [
            PartitionChangeRecord(
                int(at.index[row]),
                partitions.topic_ids[at.topic[row]],
                isr=ordered if isr != before else None,
                leader=new_leader if led else None,
                replicas=ids,
                directories=tuple(cluster.brokers[one].directories[held] for one, held in replicas),
                **fields,
            )
        ]
    )
    at.replicas[row] = [*ids, *[NO_BROKER] * (WIDTH - len(ids))]
    at.directory[row] = [*[held for _, held in replicas], *[0] * (WIDTH - len(ids))]
    at.isr[row] = np.isin(at.replicas[row], list(isr))
    at.leader[row] = new_leader
    partitions.totals.leader_changes += led
    # A replica that moved away did not fall out of the ISR.
    partitions.totals.isr_shrinks += bool((before - isr) & set(ids))
    partitions.totals.isr_expands += bool(isr - before)
    partitions.note(row, cluster.log.now_ms, offset, led=led)
    return offset


def _start(cluster: Cluster, row: int) -> tuple[list[tuple[int, int]], list[tuple[int, int]]] | None:
    """Starts to move one replica of `row`. Returns (replicas before, target), or
    None without a free broker."""
    before = _replicas(cluster, row)
    held = {broker for broker, _ in before}
    free = [one for one in cluster.active() if one not in held]
    if not free:
        return None
    new, place = cluster.rng.choice(free), cluster.rng.randrange(len(before))
    target = list(before)
    old = before[place]
    target[place] = (new, cluster.rng.randrange(len(cluster.brokers[new].directories)))
    isr = set(cluster.partitions.isr_of(row))
    _write(cluster, row, [*target, old], isr, adding_replicas=(new,), removing_replicas=(old[0],))
    return before, target


def _reassign(cluster: Cluster, kind: str, *, cancel: bool) -> None:
    rows = some_replicated(cluster, MOST).tolist()
    start, first = cluster.log.now_ms, cluster.log.offset
    moved = []
    for row in rows:
        cluster.after(1, 50)
        begun = _start(cluster, row)
        if begun is not None:
            moved.append((row, *begun))
    cluster.idle(cluster.rng.randint(5 * SECOND_MS, 90 * SECOND_MS))
    for row, before, target in moved:
        cluster.after(1, 2000)
        isr = set(cluster.partitions.isr_of(row))
        ends = before if cancel else target
        ids = {broker for broker, _ in ends}
        _write(
            cluster,
            row,
            ends,
            (isr if cancel else isr | ids) & ids,
            adding_replicas=(),
            removing_replicas=(),
        )
    cluster.after(1000, 3000)
    cluster.preferred()
    cluster.tell(kind, start, first, partitions=[cluster.partitions.path(row) for row, _, _ in moved])


def reassignment(cluster: Cluster) -> None:
    """Moves replicas to other brokers."""
    _reassign(cluster, "reassignment", cancel=False)


def reassignment_cancelled(cluster: Cluster) -> None:
    """Starts to move replicas, then cancels the move."""
    _reassign(cluster, "reassignment_cancelled", cancel=True)


EVERY = {**INCIDENTS, "reassignment": reassignment, "reassignment_cancelled": reassignment_cancelled}
"""Every kind of incident, by its name in `plan.KINDS`."""
