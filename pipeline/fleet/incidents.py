"""Incidents of a synthetic cluster: each a function that writes one to the log and adds it to the truth.

Each leaves the cluster healthy.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from metaquorum.metadata.records.types import BrokerRegistrationChangeRecord, PartitionChangeRecord
from metaquorum.pipeline.fleet.cluster import FleetCluster
from metaquorum.pipeline.fleet.partitions import NO_BROKER, Change, Ints, Rows

SECOND_MS = 1000
MAX_DOWN_MS = 120 * SECOND_MS
_SESSION_TIMEOUT_MS = 9000


def returns(cluster: FleetCluster, broker: int, *, restarted: bool) -> dict[str, int]:
    """The broker registers (if its process is new), is unfenced and catches up. Returns the times."""
    if restarted:
        cluster.register(broker)
        cluster.after(300, 4000)
    back = cluster.unfence(broker)
    cluster.after(300, 2500)
    cluster.catch_up(broker)
    return {
        "unfenced_ms": back["time_ms"],
        "unfenced_offset": back["offset"],
        "in_sync_ms": cluster.log.last_ms,
    }


def broker_crash(cluster: FleetCluster) -> None:
    """kill -9: the session times out, the broker is fenced and returns as a new process."""
    broker = cluster.rng.choice(cluster.active())
    start, first = cluster.log.now_ms, cluster.log.offset
    cluster.after(_SESSION_TIMEOUT_MS, _SESSION_TIMEOUT_MS + 1500)
    fenced = cluster.fence(broker)
    cluster.idle(cluster.rng.randint(10 * SECOND_MS, MAX_DOWN_MS))
    back = returns(cluster, broker, restarted=True)
    cluster.after(1000, 5000)
    preferred = cluster.preferred()
    cluster.note_incident(
        "broker_crash",
        start,
        first,
        broker=broker,
        rack=fenced["rack"],
        fenced_ms=fenced["time_ms"],
        fenced_offset=fenced["offset"],
        leaders_moved=fenced["leaders_moved"],
        left_leaderless=fenced["left_leaderless"],
        failover_ms=fenced["time_ms"] - start,
        preferred_moves=preferred,
        **back,
    )


def controlled_restart(cluster: FleetCluster) -> None:
    """One step of a rolling restart: controlled shutdown, fence, registration, unfence."""
    broker = cluster.rng.choice(cluster.active())
    start, first = cluster.log.now_ms, cluster.log.offset
    moved = cluster.controlled_shutdown(broker)
    cluster.after(500, 3000)
    fenced = cluster.fence(broker)
    cluster.idle(cluster.rng.randint(3 * SECOND_MS, 30 * SECOND_MS))
    back = returns(cluster, broker, restarted=True)
    cluster.after(1000, 5000)
    cluster.preferred()
    cluster.note_incident(
        "controlled_restart",
        start,
        first,
        broker=broker,
        rack=moved["rack"],
        shutdown_ms=moved["time_ms"],
        shutdown_offset=moved["offset"],
        fenced_ms=fenced["time_ms"],
        fenced_offset=fenced["offset"],
        leaders_moved=moved["leaders_moved"],
        left_leaderless=moved["left_leaderless"],
        **back,
    )


def flapping_broker(cluster: FleetCluster) -> None:
    """A broker that loses its session repeatedly without a restart."""
    broker = cluster.rng.choice(cluster.active())
    start, first = cluster.log.now_ms, cluster.log.offset
    flaps = cluster.rng.randint(*FLAPS)
    for _ in range(flaps):
        cluster.after(2 * SECOND_MS, 10 * SECOND_MS)
        cluster.fence(broker)
        cluster.after(1 * SECOND_MS, 6 * SECOND_MS)
        returns(cluster, broker, restarted=False)
    cluster.preferred()
    cluster.note_incident("flapping_broker", start, first, broker=broker, flaps=flaps)


FLAPS = (4, 6)


def fence_storm(cluster: FleetCluster) -> None:
    """Several brokers lose their sessions within a few seconds, as when a switch fails."""
    active = cluster.active()
    count = min(max(3, len(active) // 3), len(active) - 1)
    brokers = sorted(cluster.rng.sample(active, count))
    start, first = cluster.log.now_ms, cluster.log.offset
    fences = []
    for broker in brokers:
        cluster.after(50, 3000)
        fences.append(cluster.fence(broker))
    cluster.idle(cluster.rng.randint(5 * SECOND_MS, 40 * SECOND_MS))
    for broker in brokers:
        cluster.after(50, 1500)
        returns(cluster, broker, restarted=False)
    for broker in brokers:  # partitions without a leader when one of the others returned
        cluster.after(50, 500)
        cluster.catch_up(broker)
    cluster.after(1000, 5000)
    cluster.preferred()
    cluster.note_incident(
        "fence_storm",
        start,
        first,
        brokers=brokers,
        first_fence_ms=fences[0]["time_ms"],
        last_fence_ms=fences[-1]["time_ms"],
        left_leaderless=sum(one["left_leaderless"] for one in fences),
    )


def directory_failure(cluster: FleetCluster) -> None:
    """A log directory of a broker goes offline. Later the broker restarts with the directory repaired."""
    broker_id = cluster.rng.choice(cluster.active())
    broker = cluster.brokers[broker_id]
    start, first = cluster.log.now_ms, cluster.log.offset
    lost = cluster.rng.randrange(len(broker.directories))
    broker.online = tuple(one for at, one in enumerate(broker.directories) if at != lost)
    own = cluster.partitions.holding(broker_id)
    at = cluster.partitions.columns
    held = ((at.replicas[own] == broker_id) & (at.directory[own] == lost)).any(axis=1)
    record = BrokerRegistrationChangeRecord(broker_id, broker.epoch, log_dirs=broker.online)
    failed = cluster.leave(broker_id, record, "directory-failed", own[held])
    cluster.idle(cluster.rng.randint(10 * SECOND_MS, 60 * SECOND_MS))
    cluster.controlled_shutdown(broker_id)
    cluster.after(500, 2000)
    cluster.fence(broker_id)
    cluster.after(3000, 9000)
    back = returns(cluster, broker_id, restarted=True)
    cluster.after(1000, 5000)
    cluster.preferred()
    cluster.note_incident(
        "directory_failure",
        start,
        first,
        broker=broker_id,
        directory=cluster.directory_text(broker.directories[lost]),
        failed_ms=failed["time_ms"],
        failed_offset=failed["offset"],
        replicas=int(held.sum()),
        leaders_moved=failed["leaders_moved"],
        left_leaderless=failed["left_leaderless"],
        **back,
    )


def shrink_to_one(cluster: FleetCluster, rows: Rows, keep: Rows | Ints) -> None:
    """The ISR of each of `rows` shrinks to its leader, `keep`, a column of broker ids."""
    at = cluster.partitions.columns
    isr = at.isr[rows] & (at.replicas[rows] == keep[:, None])
    cluster.alter(Change(rows, isr, at.leader[rows].copy()))


def some_replicated(cluster: FleetCluster, most: int, leader: int | None = None) -> Rows:
    """A few partitions with at least two replicas, all in sync (and with the leader `leader`)."""
    columns = cluster.partitions.columns
    rows = cluster.partitions.live()
    held = (columns.replicas[rows] != NO_BROKER).sum(axis=1)
    fit = (held >= 2) & (columns.isr[rows].sum(axis=1) == held)
    if leader is not None:
        fit &= columns.leader[rows] == leader
    rows = rows[fit]
    count = min(len(rows), cluster.rng.randint(1, most))
    return np.array(sorted(cluster.rng.sample(rows.tolist(), count)), dtype=np.int64)


def unclean_election(cluster: FleetCluster) -> None:
    """Followers leave the ISR, its last member fails, and an operator elects one that was not in sync."""
    broker = _leading(cluster)
    rows = some_replicated(cluster, 5, broker)
    start, first = cluster.log.now_ms, cluster.log.offset
    shrink_to_one(cluster, rows, np.full(len(rows), broker))
    cluster.after(SECOND_MS, 20 * SECOND_MS)
    fenced = cluster.fence(broker)
    cluster.idle(cluster.rng.randint(5 * SECOND_MS, 60 * SECOND_MS))
    elected = [_elect_uncleanly(cluster, row) for row in rows.tolist()]
    cluster.idle(cluster.rng.randint(5 * SECOND_MS, 30 * SECOND_MS))
    returns(cluster, broker, restarted=True)
    cluster.after(500, 3000)
    for replica in cluster.active():
        cluster.catch_up(replica, rows[(cluster.partitions.columns.replicas[rows] == replica).any(axis=1)])
    cluster.after(1000, 5000)
    cluster.preferred()
    cluster.note_incident(
        "unclean_election",
        start,
        first,
        broker=broker,
        fenced_ms=fenced["time_ms"],
        elections=elected,
    )


def _leading(cluster: FleetCluster) -> int:
    """A broker that leads a fully replicated partition."""
    rows = some_replicated(cluster, 1)
    return int(cluster.partitions.columns.leader[rows[0]])


def _elect_uncleanly(cluster: FleetCluster, row: int) -> dict[str, int | str]:
    partitions, columns = cluster.partitions, cluster.partitions.columns
    topic_id, index = partitions.topic_ids[columns.topic[row]], int(columns.index[row])
    old = partitions.isr_of(row)[0]
    active = cluster.active()
    new = next(one for one in columns.replicas[row].tolist() if one != old and one in active)
    cluster.after(5, 200)
    offset = cluster.log.records(
        [PartitionChangeRecord(index, topic_id, isr=(new,), leader=new, leader_recovery_state=1)]
    )
    columns.isr[row] = columns.replicas[row] == new
    columns.leader[row] = new
    totals = partitions.totals
    totals.leader_changes += 1
    totals.isr_shrinks += 1
    totals.isr_expands += 1
    totals.unclean_elections += 1
    partitions.note(row, cluster.log.now_ms, offset, led=True)
    elected_ms = cluster.log.now_ms
    cluster.after(100, 900)
    recovered = cluster.log.records([PartitionChangeRecord(index, topic_id, leader_recovery_state=0)])
    partitions.note(row, cluster.log.now_ms, recovered, led=False)
    return {
        "partition": partitions.path(row),
        "offset": offset,
        "time_ms": elected_ms,
        "leader": new,
        "instead_of": old,
    }


def under_min_isr(cluster: FleetCluster) -> None:
    """Followers of some partitions are too slow for a while: writes with acks=all are refused."""
    rows = some_replicated(cluster, 8)
    rows = rows[cluster.partitions.columns.min_isr[rows] > 1]
    if not len(rows):
        rows = _with_min_isr(cluster)
    start, first = cluster.log.now_ms, cluster.log.offset
    shrink_to_one(cluster, rows, cluster.partitions.columns.leader[rows])
    cluster.idle(cluster.rng.randint(5 * SECOND_MS, MAX_DOWN_MS))
    for broker in cluster.active():
        held = (cluster.partitions.columns.replicas[rows] == broker).any(axis=1)
        cluster.catch_up(broker, rows[held])
    cluster.note_incident(
        "under_min_isr", start, first, partitions=[cluster.partitions.path(row) for row in rows.tolist()]
    )


def _with_min_isr(cluster: FleetCluster) -> Rows:
    at = cluster.partitions.columns
    rows = cluster.partitions.live()
    fit: Rows = rows[(at.min_isr[rows] > 1) & (at.isr[rows].sum(axis=1) > 1)]
    return fit[:1]


def leaderless(cluster: FleetCluster) -> None:
    """The last member of some ISRs fails while unclean election is off: they have
    no leader until it returns."""
    broker = _leading(cluster)
    rows = some_replicated(cluster, 10, broker)
    start, first = cluster.log.now_ms, cluster.log.offset
    shrink_to_one(cluster, rows, np.full(len(rows), broker))
    cluster.after(SECOND_MS, 5 * SECOND_MS)
    fenced = cluster.fence(broker)
    cluster.idle(cluster.rng.randint(20 * SECOND_MS, MAX_DOWN_MS))
    back = returns(cluster, broker, restarted=True)
    cluster.after(500, 3000)
    for replica in cluster.active():
        cluster.catch_up(replica, rows[(cluster.partitions.columns.replicas[rows] == replica).any(axis=1)])
    cluster.after(1000, 5000)
    cluster.preferred()
    cluster.note_incident(
        "leaderless",
        start,
        first,
        broker=broker,
        partitions=[cluster.partitions.path(row) for row in rows.tolist()],
        left_leaderless=fenced["left_leaderless"],
        fenced_ms=fenced["time_ms"],
        **back,
    )


def quorum_failover(cluster: FleetCluster) -> None:
    """The active controller fails. Nothing is written until another one is elected."""
    start, first = cluster.log.last_ms, cluster.log.offset
    old = cluster.leader
    others = [one for one in cluster.plan.controllers if one != old]
    cluster.leader = cluster.rng.choice(others)
    cluster.after(1200, 6000)
    lead(cluster, cluster.leader, cluster.log.epoch + cluster.rng.choice((1, 1, 1, 2)))
    cluster.note_incident(
        "quorum_failover", start, first, old_leader=old, new_leader=cluster.leader, epoch=cluster.log.epoch
    )


def lead(cluster: FleetCluster, leader: int, epoch: int) -> None:
    """`leader` starts `epoch`."""
    offset = cluster.log.leader_change(leader, cluster.plan.controllers, epoch)
    cluster.epochs.append({"epoch": epoch, "leader": leader, "offset": offset, "time_ms": cluster.log.now_ms})


def broken_invariant(cluster: FleetCluster, *, mend: bool = True) -> None:
    """A deliberate controller bug: a leader outside the ISR, corrected a little later, or never."""
    partitions, columns = cluster.partitions, cluster.partitions.columns
    row = int(some_replicated(cluster, 1)[0])
    start, first = cluster.log.now_ms, cluster.log.offset
    topic_id, index = partitions.topic_ids[columns.topic[row]], int(columns.index[row])
    leader = int(columns.leader[row])
    active = [one for one in columns.replicas[row].tolist() if one not in (leader, NO_BROKER)]
    wrong = cluster.rng.choice(active)
    isr = tuple(one for one in partitions.isr_of(row) if one != wrong)
    cluster.after(10, 500)
    offset = cluster.log.records([PartitionChangeRecord(index, topic_id, isr=isr, leader=wrong)])
    columns.isr[row] &= columns.replicas[row] != wrong
    columns.leader[row] = wrong
    partitions.totals.leader_changes += 1
    partitions.totals.isr_shrinks += 1
    partitions.note(row, cluster.log.now_ms, offset, led=True)
    broken_ms = cluster.log.now_ms
    if mend:
        cluster.idle(cluster.rng.randint(SECOND_MS, 20 * SECOND_MS))
        cluster.after(1, 500)
        whole = columns.replicas[row][None, :] != NO_BROKER
        rows = np.array([row], dtype=np.int64)
        cluster.write(Change(rows, whole, np.array([leader], dtype=np.int32)))
    cluster.note_incident(
        "broken_invariant",
        start,
        first,
        rule="leader-in-isr",
        where=f"topic/{partitions.path(row)}",
        broken_offset=offset,
        broken_ms=broken_ms,
        mended_offset=cluster.log.offset - 1 if mend else None,
    )


Incident = Callable[[FleetCluster], None]

INCIDENTS: dict[str, Incident] = {
    "broker_crash": broker_crash,
    "controlled_restart": controlled_restart,
    "flapping_broker": flapping_broker,
    "fence_storm": fence_storm,
    "directory_failure": directory_failure,
    "unclean_election": unclean_election,
    "under_min_isr": under_min_isr,
    "leaderless": leaderless,
    "quorum_failover": quorum_failover,
    "broken_invariant": broken_invariant,
}
