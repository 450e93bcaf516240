"""The plan of a fleet: sizes, names, seeds, and the incidents of each cluster.

Everything follows from the seed: the same numbers give the same bytes.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import msgspec

from metaquorum.storage.uuids import random_uuid, uuid_to_text

KINDS = (
    "broker_crash",
    "controlled_restart",
    "flapping_broker",
    "fence_storm",
    "directory_failure",
    "unclean_election",
    "under_min_isr",
    "leaderless",
    "reassignment",
    "reassignment_cancelled",
    "quorum_failover",
    "broken_invariant",
)
"""Incidents of a cluster. A corrupt tail is extra: it happens to a file."""

DAMAGES = ("torn_batch", "flipped_byte", "zeros")
"""Kinds of corrupt tails."""

DEFAULT_START_MS = 1_782_864_000_000
"""2026-07-01T00:00:00Z: the default start of every log."""

MIN_RECORDS = 400
"""Fewer records per cluster leave no room for brokers, topics and one incident."""

_MAX_BROKERS = 30
_MAX_PARTITIONS = 4000
_RACKS = ("rack-a", "rack-b", "rack-c")


class FleetPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A fleet in numbers. `records` is the exact sum over all clusters. `brokers` and `partitions` are per
    cluster; None: they vary with the records and the seed. `nodes`: the number of controllers per cluster
    whose logs are written, the first one whole, the others a few batches behind, like real followers."""

    clusters: int = 4
    records: int = 100_000
    seed: int = 0
    brokers: int | None = None
    partitions: int | None = None
    nodes: int = 1
    start_ms: int = DEFAULT_START_MS
    idle_ms: int = 5000
    segment_bytes: int = 8 * 1024 * 1024
    snapshots: int = 2
    kinds: tuple[str, ...] = KINDS
    damaged_every: int = 4
    open_every: int = 3

    def __post_init__(self) -> None:
        if self.clusters < 1 or self.nodes < 1 or self.nodes > 5:
            raise ValueError("a fleet needs at least 1 cluster, and 1 to 5 nodes per cluster")
        if self.records < self.clusters * MIN_RECORDS:
            raise ValueError(
                f"{self.records} records are too few for {self.clusters} clusters; give at least "
                f"{MIN_RECORDS} per cluster"
            )
        if self.brokers is not None and not 4 <= self.brokers <= 1000:
            raise ValueError("a cluster needs 4 to 1000 brokers: incidents need some that stay up")
        if self.partitions is not None and not 12 <= self.partitions <= 1_000_000:
            raise ValueError("a cluster needs 12 to 1000000 partitions")
        if self.partitions is not None and 2 * self.partitions > self.records // self.clusters:
            raise ValueError(
                "more than half of the records would create partitions: give more records or fewer partitions"
            )
        unknown = set(self.kinds) - set(KINDS)
        if unknown:
            raise ValueError(f"{sorted(unknown)[0]} is not an incident; choose among {', '.join(KINDS)}")


class ClusterPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One cluster. `kinds`: the order of incidents, repeated while they fit. `damage`: what happens to the
    end of the first node's log, or None. `ends_open`: the log ends while a broker is down, and partitions
    that only it had in sync have no leader. `ends_broken`: the log ends with a broken invariant."""

    number: int
    name: str
    cluster_id: str
    seed: int
    records: int
    brokers: int
    racks: tuple[str, ...]
    partitions: int
    nodes: int
    start_ms: int
    idle_ms: int
    segment_bytes: int
    snapshots: int
    kinds: tuple[str, ...]
    damage: str | None
    default_min_isr: int | None
    ends_open: bool
    ends_broken: bool

    @property
    def controllers(self) -> tuple[int, ...]:
        """Ids of the quorum's voters. The first `nodes` of them have logs."""
        return tuple(range(3000, 3000 + max(3, self.nodes)))


def cluster_plans(plan: FleetPlan) -> Iterator[ClusterPlan]:
    """The plan of every cluster, in order. Sizes differ by up to a factor of three; the records add up."""
    rng = random.Random(f"fleet {plan.seed}")
    weights = [rng.uniform(0.6, 1.8) for _ in range(plan.clusters)]
    spare = plan.records - plan.clusters * MIN_RECORDS
    shares = [MIN_RECORDS + int(spare * weight / sum(weights)) for weight in weights]
    shares[-1] += plan.records - sum(shares)
    for number, records in enumerate(shares):
        yield _cluster(plan, number, records)


def _cluster(plan: FleetPlan, number: int, records: int) -> ClusterPlan:
    rng = random.Random(f"cluster {plan.seed}/{number}")
    partitions = plan.partitions or max(16, min(_MAX_PARTITIONS, int(records * rng.uniform(0.012, 0.02))))
    brokers = plan.brokers or max(4, min(_MAX_BROKERS, 4 + int(partitions**0.5 * rng.uniform(0.2, 0.5))))
    # Rotated by the number: with as many clusters as kinds, each kind is first in one cluster.
    turn = number % len(plan.kinds) if plan.kinds else 0
    damaged = plan.damaged_every and number % plan.damaged_every == plan.damaged_every - 1
    return ClusterPlan(
        number=number,
        name=f"cluster-{number:04d}",
        cluster_id=uuid_to_text(random_uuid(rng)),
        seed=rng.getrandbits(63),
        records=records,
        brokers=brokers,
        racks=_RACKS,
        partitions=min(partitions, records // 2),
        nodes=plan.nodes,
        start_ms=plan.start_ms + rng.randrange(60_000),
        idle_ms=plan.idle_ms,
        segment_bytes=plan.segment_bytes,
        snapshots=plan.snapshots,
        kinds=plan.kinds[turn:] + plan.kinds[:turn],
        damage=DAMAGES[number // plan.damaged_every % len(DAMAGES)] if damaged else None,
        default_min_isr=2 if number % 5 == 4 else None,
        ends_open=plan.open_every > 0 and number % plan.open_every == plan.open_every - 1,
        ends_broken="broken_invariant" in plan.kinds
        and plan.open_every > 1
        and number % plan.open_every == 0,
    )
