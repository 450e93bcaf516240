"""The course of one synthetic cluster from its first record to its last, and the truth about it.

The order: how the cluster starts, what happens between incidents, which incident is next, and how the log
gets exactly the planned number of records. Yields after every piece, so that the caller can write it and
memory does not grow with the log.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from itertools import count
from typing import Any

import numpy as np

from metaquorum.metadata.records.types import (
    BeginTransactionRecord,
    ClientQuotaRecord,
    ConfigRecord,
    ControllerEndpoint,
    ControllerFeature,
    ControllerRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
    PartitionChangeRecord,
    ProducerIdsRecord,
    QuotaEntity,
)
from metaquorum.pipeline.fleet.cluster import BROKER, LEVEL, MIN_ISR, TOPIC, FleetCluster
from metaquorum.pipeline.fleet.incidents import (
    FLAPS,
    INCIDENTS,
    MAX_DOWN_MS,
    SECOND_MS,
    broken_invariant,
    lead,
    some_replicated,
)
from metaquorum.pipeline.fleet.partitions import NO_BROKER, WIDTH
from metaquorum.pipeline.fleet.plan import ClusterPlan
from metaquorum.storage.uuids import random_uuid

SLACK = 40
"""Records to keep free beyond those that an incident may need."""


def live(plan: ClusterPlan) -> Iterator[FleetCluster]:
    """Yields the cluster of a plan as its log grows, last when it is complete.

    Raises RuntimeError if the number of records is not the planned one (a bug in the bounds).
    """
    cluster = FleetCluster(plan)
    _begin(cluster)
    yield cluster
    for _ in _topics(cluster):
        yield cluster
    for turn in count():
        _between(cluster)
        yield cluster
        kind = _next_kind(cluster, turn)
        if kind is None:
            break
        EVERY[kind](cluster)
        yield cluster
    for _ in _fill(cluster):
        yield cluster
    if cluster.room:
        raise RuntimeError(f"{plan.name} has {cluster.log.offset} records, {plan.records} were asked for")


def _begin(cluster: FleetCluster) -> None:
    plan, log = cluster.plan, cluster.log
    lead(cluster, cluster.leader, 1)
    cluster.after(5, 50)
    log.records(
        [
            BeginTransactionRecord("Bootstrap records"),
            FeatureLevelRecord("metadata.version", LEVEL),
            EndTransactionRecord(),
        ]
    )
    for controller in plan.controllers:
        cluster.after(5, 100)
        record = ControllerRecord(
            controller,
            random_uuid(cluster.rng),
            end_points=(
                ControllerEndpoint("CONTROLLER", f"controller-{controller}.{plan.name}.example", 9093, 0),
            ),
            features=(ControllerFeature("metadata.version", 1, LEVEL),),
        )
        cluster.controllers.append(record)
        log.records([record])
    if plan.default_min_isr is not None:
        log.records([ConfigRecord(BROKER, "", MIN_ISR, str(plan.default_min_isr))])
        cluster.configs[BROKER, "", MIN_ISR] = str(plan.default_min_isr)
    for broker in range(1, plan.brokers + 1):
        cluster.add_broker(broker)
        cluster.after(10, 300)
        cluster.register(broker)
    for broker in cluster.brokers:
        cluster.after(10, 300)
        cluster.unfence(broker)


def _topics(cluster: FleetCluster) -> Iterator[None]:
    """Creates topics until the planned partitions exist."""
    most = max(4, cluster.plan.partitions // 12)
    while len(cluster.partitions) < cluster.plan.partitions:
        cluster.after(100, 5000)
        left = cluster.plan.partitions - len(cluster.partitions)
        # The first topics have three replicas: incidents need them, however small the cluster is.
        early = len(cluster.partitions.topic_ids) < 2
        _topic(cluster, min(left, cluster.rng.randint(2, most)), 3 if early else 0)
        yield


def _topic(cluster: FleetCluster, partitions: int, width: int = 0) -> None:
    width = width or cluster.rng.choices((1, 2, 3), (1, 1, 5))[0]
    min_isr = (2 if cluster.rng.random() < 0.6 or len(cluster.partitions) == 0 else None) if width == 3 else 1
    cluster.create_topic(partitions, width, min_isr)


# -- between incidents -------------------------------------------------------------------------------


def _between(cluster: FleetCluster) -> None:
    """A while without an incident: idle time, slow followers, changes by users."""
    rng = cluster.rng
    reserve = _reserve(cluster)
    cluster.idle(rng.randint(5 * SECOND_MS, 60 * SECOND_MS), keep=reserve)
    for _ in range(rng.randint(1, 3)):
        most = max(2, cluster.plan.partitions // 25)
        _slow_follower(cluster, rng.randint(1, most))
        cluster.idle(rng.randint(0, 20 * SECOND_MS), keep=reserve)
    if cluster.room > reserve and rng.random() < 0.3:
        _small_change(cluster)
    if rng.random() < 0.1 and cluster.room > cluster.plan.partitions // 2 + reserve:
        _topic(cluster, rng.randint(2, max(2, cluster.plan.partitions // 40)))
    if rng.random() < 0.07 and cluster.room > reserve and len(cluster.partitions.topic_ids) > 6:
        _delete_a_topic(cluster)


def _slow_follower(cluster: FleetCluster, most: int) -> bool:
    """A follower falls out of some ISRs and catches up. False if there is no room for it."""
    most = min(most, (cluster.room - _reserve(cluster)) // 2)
    active = cluster.active()
    if most < 1 or not active:
        return False
    broker = cluster.rng.choice(active)
    at = cluster.partitions.columns
    rows = cluster.partitions.holding(broker)
    fit = (at.leader[rows] != broker) & cluster.partitions.in_isr(broker, rows) & (at.leader[rows] >= 0)
    rows = rows[fit & (at.isr[rows].sum(axis=1) > 1)]
    if not len(rows):
        return False
    low = cluster.rng.randrange(len(rows))
    rows = np.sort(np.roll(rows, -low)[:most])
    cluster.alter(cluster.partitions.without(broker, rows))
    cluster.after(500, 15 * SECOND_MS)
    cluster.catch_up(broker, rows)
    cluster.after(100, 2000)
    return True


def _small_change(cluster: FleetCluster) -> None:
    rng, log = cluster.rng, cluster.log
    cluster.after(10, 2000)
    match rng.randrange(3):
        case 0:
            broker = cluster.brokers[rng.choice(cluster.active())]
            cluster.next_producer_id += 1000
            log.records([ProducerIdsRecord(broker.broker_id, broker.epoch, cluster.next_producer_id)])
        case 1:
            topic = cluster.partitions.topic_names[
                int(cluster.partitions.columns.topic[cluster.partitions.live()[0]])
            ]
            value = str(rng.randint(1, 100) * 3_600_000)
            cluster.configs[TOPIC, topic, "retention.ms"] = value
            log.records([ConfigRecord(TOPIC, topic, "retention.ms", value)])
        case _:
            user = QuotaEntity("user", f"user-{rng.randrange(5)}")
            quota = ClientQuotaRecord((user,), "producer_byte_rate", float(rng.randint(1, 64) << 20), False)
            cluster.quotas[user, quota.key] = quota
            log.records([quota])


def _delete_a_topic(cluster: FleetCluster) -> None:
    """Deletes the smallest topic, except the first two and those whose states the truth has."""
    partitions = cluster.partitions
    kept = {int(partitions.columns.topic[row]) for row in partitions.samples} | {0, 1}
    sizes = np.bincount(partitions.columns.topic[partitions.live()], minlength=len(partitions.topic_ids))
    names = partitions.topic_names
    free = [at for at in np.flatnonzero(sizes).tolist() if at not in kept]
    free = [at for at in free if (TOPIC, names[at], "retention.ms") not in cluster.configs]
    if free:
        cluster.after(10, 1000)
        cluster.delete_topic(min(free, key=lambda at: (sizes[at], at)))


# -- which incident ------------------------------------------------------------------------------------


def _next_kind(cluster: FleetCluster, turn: int) -> str | None:
    """The next kind whose records surely fit; None if there is none."""
    kinds = cluster.plan.kinds
    bounds = _bounds(cluster)
    for step in range(len(kinds)):
        kind = kinds[(turn + step) % len(kinds)]
        if bounds[kind] + _reserve(cluster) <= cluster.room:
            return kind
    return None


def _most_held(cluster: FleetCluster) -> int:
    replicas = cluster.partitions.columns.replicas
    return int(np.bincount(replicas[replicas != NO_BROKER]).max())


def _reserve(cluster: FleetCluster) -> int:
    """Records to keep free: some, and those for the fence of a broker that stays down at the end."""
    return SLACK + (_most_held(cluster) + 1 if cluster.plan.ends_open else 0)


def _bounds(cluster: FleetCluster) -> dict[str, int]:
    """The most records that each kind may write now."""
    partitions = cluster.partitions
    held, rows = _most_held(cluster), partitions.live()
    astray = int((partitions.columns.leader[rows] != partitions.columns.replicas[rows, 0]).sum())
    storm = max(3, len(cluster.brokers) // 3)
    idle = cluster.idle_records
    away = 4 * held + astray + 6
    return {
        "broker_crash": away + idle(MAX_DOWN_MS),
        "controlled_restart": away + idle(30 * SECOND_MS),
        "flapping_broker": FLAPS[1] * (3 * held + 2) + held + astray,
        "fence_storm": storm * (5 * held + 2) + astray + idle(40 * SECOND_MS),
        "directory_failure": away + held + idle(60 * SECOND_MS),
        "unclean_election": away + 5 * 12 + idle(60 * SECOND_MS) + idle(30 * SECOND_MS),
        "under_min_isr": 8 * 4 + idle(MAX_DOWN_MS),
        "leaderless": away + 10 * 8 + idle(MAX_DOWN_MS),
        "reassignment": 3 * MOST + astray + idle(90 * SECOND_MS),
        "reassignment_cancelled": 3 * MOST + astray + idle(90 * SECOND_MS),
        "quorum_failover": 1,
        "broken_invariant": 2 + idle(20 * SECOND_MS),
    }


# -- the end ---------------------------------------------------------------------------------------------


def _fill(cluster: FleetCluster) -> Iterator[None]:
    """Slow followers and idle batches until the log has its planned length."""
    most = max(2, cluster.plan.partitions // 10)
    while cluster.room > 2 * SLACK + _reserve(cluster) + 2 * most and _slow_follower(cluster, most):
        cluster.idle(5 * SECOND_MS, keep=_reserve(cluster))
        yield
    if cluster.plan.ends_broken:
        broken_invariant(cluster, mend=False)
    if cluster.plan.ends_open:
        broker = cluster.rng.choice(cluster.active())
        start, first = cluster.log.now_ms, cluster.log.offset
        cluster.after(9000, 10500)
        fenced = cluster.fence(broker)
        cluster.note_incident(
            "lost_broker",
            start,
            first,
            broker=broker,
            rack=fenced["rack"],
            fenced_ms=fenced["time_ms"],
            fenced_offset=fenced["offset"],
            leaders_moved=fenced["leaders_moved"],
            left_leaderless=fenced["left_leaderless"],
        )
    while cluster.room > 0:
        cluster.idle(min(cluster.room, 1000) * cluster.plan.idle_ms)
        yield


def truth(cluster: FleetCluster) -> dict[str, Any]:
    """Everything known about a complete cluster, for JSON. Times are Unix ms."""
    log, partitions = cluster.log, cluster.partitions
    leaderless, under = partitions.close(log.last_ms)
    rows = partitions.live()
    leaders, led = np.unique(partitions.columns.leader[rows], return_counts=True)
    return {
        "name": cluster.plan.name,
        "cluster_id": cluster.plan.cluster_id,
        "controllers": list(cluster.plan.controllers),
        "brokers": {
            str(at): {"rack": broker.rack, "state": broker.state} for at, broker in cluster.brokers.items()
        },
        "records": log.offset,
        "batches": log.batches,
        "start_ms": cluster.epochs[0]["time_ms"],
        "end_ms": log.last_ms,
        "records_by_type": dict(sorted(log.counts.items())),
        "totals": asdict(partitions.totals),
        "final": {
            "topics": len(np.unique(partitions.columns.topic[rows])),
            "partitions": len(rows),
            "leaderless": leaderless,
            "under_min_isr": under,
            "leaders": dict(zip(map(str, leaders.tolist()), led.tolist(), strict=True)),
        },
        "epochs": cluster.epochs,
        "broker_states": cluster.broker_states,
        "failovers": cluster.failovers,
        "incidents": cluster.incidents,
        "samples": [
            {
                "topic": partitions.topic_names[partitions.columns.topic[row]],
                "partition": int(partitions.columns.index[row]),
                "states": states,
            }
            for row, states in sorted(partitions.samples.items())
        ],
    }


MOST = 20
"""Most partitions in one reassignment."""


def _replicas(cluster: FleetCluster, row: int) -> list[tuple[int, int]]:
    """(broker, number of its directory) of every replica."""
    at = cluster.partitions.columns
    pairs = zip(at.replicas[row].tolist(), at.directory[row].tolist(), strict=True)
    return [(broker, directory) for broker, directory in pairs if broker != NO_BROKER]


def _write(
    cluster: FleetCluster, row: int, replicas: list[tuple[int, int]], isr: set[int], **fields: Any
) -> int:
    """One record with new replicas for `row` (and ISR and leader if they differ). Returns its offset."""
    partitions, columns = cluster.partitions, cluster.partitions.columns
    ids = tuple(broker for broker, _ in replicas)
    before, leader = set(partitions.isr_of(row)), int(columns.leader[row])
    ordered = tuple(one for one in ids if one in isr)
    new_leader = leader if leader in isr else ordered[0]
    led = new_leader != leader
    offset = cluster.log.records(
        [
            PartitionChangeRecord(
                int(columns.index[row]),
                partitions.topic_ids[columns.topic[row]],
                isr=ordered if isr != before else None,
                leader=new_leader if led else None,
                replicas=ids,
                directories=tuple(cluster.brokers[one].directories[held] for one, held in replicas),
                **fields,
            )
        ]
    )
    columns.replicas[row] = [*ids, *[NO_BROKER] * (WIDTH - len(ids))]
    columns.directory[row] = [*[held for _, held in replicas], *[0] * (WIDTH - len(ids))]
    columns.isr[row] = np.isin(columns.replicas[row], list(isr))
    columns.leader[row] = new_leader
    partitions.totals.leader_changes += led
    # A replica that moved away did not fall out of the ISR.
    partitions.totals.isr_shrinks += bool((before - isr) & set(ids))
    partitions.totals.isr_expands += bool(isr - before)
    partitions.note(row, cluster.log.now_ms, offset, led=led)
    return offset


def _start(cluster: FleetCluster, row: int) -> tuple[list[tuple[int, int]], list[tuple[int, int]]] | None:
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


def _reassign(cluster: FleetCluster, kind: str, *, cancel: bool) -> None:
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
    cluster.note_incident(
        kind, start, first, partitions=[cluster.partitions.path(row) for row, _, _ in moved]
    )


def reassignment(cluster: FleetCluster) -> None:
    """Moves replicas to other brokers."""
    _reassign(cluster, "reassignment", cancel=False)


def reassignment_cancelled(cluster: FleetCluster) -> None:
    """Starts to move replicas, then cancels the move."""
    _reassign(cluster, "reassignment_cancelled", cancel=True)


EVERY = {**INCIDENTS, "reassignment": reassignment, "reassignment_cancelled": reassignment_cancelled}
"""Every kind of incident, by its name in `plan.KINDS`."""
