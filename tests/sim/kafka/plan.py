"""The plan of a run with Kafka's clients: topics, groups, transactional producers and faults of one seed.

Drawn from the seed alone. Nothing may be lost: no election is unclean, no disk is replaced with an empty one.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from msgspec import structs

from metaquorum.metadata.node_configs import (
    CoordinatorConfig,
    GroupConfig,
    InternalTopic,
    TransactionConfig,
)
from tests.sim.data_load import DataLoad, TopicPlan, draw_data_load, draw_data_profile
from tests.sim.profile import FaultProfile

KAFKA_FROM = 5_000
"""Seeds from here on run groups, transactions and compacted topics."""

CLEANER_BACKOFF_MS = 300
SESSION_MS = 4_000
"""The session timeout of group members. Longer than a broker's lease: a coordinator that was replaced no
longer serves when its successor drops members."""

SOURCE, TARGET, KEYED = "in", "out", "keyed"
OFFSETS, STATE = "__consumer_offsets", "__transaction_state"
COMPACTED = frozenset({KEYED, OFFSETS, STATE})


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactedPlan(TopicPlan):
    """A topic of which the last value of each key is kept."""

    delete_retention_ms: int
    min_lag_ms: int = 0

    def configs(self) -> tuple[tuple[str, str], ...]:
        return (
            *super(CompactedPlan, self).configs(),
            ("cleanup.policy", "compact"),
            ("min.cleanable.dirty.ratio", "0.01"),
            ("delete.retention.ms", str(self.delete_retention_ms)),
            ("min.compaction.lag.ms", str(self.min_lag_ms)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaLoad:
    """`data`: brokers, topics and faults. Chances are 0..1. `silence_chance`: a client sends nothing for
    longer than its session or transaction timeout, and continues. `replace_chance`: another process takes
    over its id, while it continues."""

    data: DataLoad
    writers: int
    copiers: int
    classic_members: int
    consumer_members: int
    transaction_timeout_ms: int
    commit_chance: float
    silence_chance: float
    replace_chance: float
    leave_chance: float
    pause_ms: tuple[int, int]


def coordinator_config(load: KafkaLoad) -> CoordinatorConfig:
    topics = {each.name: each for each in load.data.topics}
    offsets, state = topics[OFFSETS], topics[STATE]
    return CoordinatorConfig(
        offsets_topic=InternalTopic(
            name=OFFSETS, partitions=offsets.partitions, replication_factor=offsets.factor, configs=()
        ),
        transactions_topic=InternalTopic(
            name=STATE, partitions=state.partitions, replication_factor=state.factor, configs=()
        ),
        offsets_commit_timeout_ms=1_500,
        groups=GroupConfig(
            group_initial_rebalance_delay_ms=100,
            group_min_session_timeout_ms=500,
            group_consumer_session_timeout_ms=SESSION_MS,
            group_consumer_heartbeat_interval_ms=200,
        ),
        transactions=TransactionConfig(abort_interval_ms=300),
    )


def kafka_topics(
    *, segment_bytes: int = 1_500, min_insync: int = 2, delete_retention_ms: int = 500
) -> tuple[TopicPlan, ...]:
    common = {"factor": 3, "min_insync": min_insync}
    compacted = {**common, "segment_bytes": segment_bytes, "delete_retention_ms": delete_retention_ms}
    return (
        TopicPlan(name=SOURCE, partitions=2, segment_bytes=16_384, **common),
        TopicPlan(name=TARGET, partitions=2, segment_bytes=4_096, **common),
        CompactedPlan(name=KEYED, partitions=2, **compacted),
        CompactedPlan(name=OFFSETS, partitions=2, **compacted),
        CompactedPlan(name=STATE, partitions=2, **compacted),
    )


def draw_kafka_load(seed: int) -> KafkaLoad:
    rng = random.Random(f"kafka of {seed}")

    def maybe(value: float, chance: float = 0.5) -> float:
        return value if rng.random() < chance else 0.0

    data = replace(
        draw_data_load(seed),
        topics=kafka_topics(
            segment_bytes=rng.choice((700, 1_500, 4_000)),
            min_insync=rng.choice((1, 2, 2)),
            delete_retention_ms=rng.choice((0, 500, 3_000)),
        ),
        producers=1,
        produce_pause_ms=(150, 400),
        produce_timeout_ms=800,
        consumers=0,
        sync_ms=rng.choice(((0.1, 2.0), (1.0, 12.0))),
        broker_crash_rate=maybe(0.1),
        crash_leader_rate=maybe(0.25, 0.7),
        crash_active_rate=maybe(0.05),
        all_crash_rate=maybe(0.06),
        directory_death_rate=maybe(0.08),
        directory_hang_rate=maybe(0.08),
        link_cut_rate=maybe(0.15),
        follower_cut_rate=maybe(0.15),
        lonely_rate=maybe(0.08, 0.3),
        reassign_rate=maybe(0.4),
        elect_rate=maybe(0.4),
        broker_stop_rate=maybe(0.08),
        emptied_chance=0.0,
        repaired_chance=0.8,
        delete_rate=0.0,
        rot_chance=0.0,
        eligible_leaders=False,  # an election of the last known leader may lose acknowledged records
    )
    return KafkaLoad(
        data=data,
        writers=rng.choice((1, 2, 2)),
        copiers=rng.choice((1, 2)),
        classic_members=rng.choice((0, 2, 2)),
        consumer_members=rng.choice((2, 2, 3)),
        transaction_timeout_ms=rng.choice((1_200, 3_000)),
        commit_chance=rng.choice((0.5, 0.8)),
        silence_chance=maybe(0.08, 0.7),
        replace_chance=maybe(0.15, 0.7),
        leave_chance=maybe(0.02, 0.7),
        pause_ms=rng.choice(((20, 120), (60, 300))),
    )


def draw_kafka_profile(seed: int, load: KafkaLoad) -> FaultProfile:
    """Long enough for transactions to time out and sessions to expire, on a network that mostly delivers."""
    drawn = draw_data_profile(seed, load.data)
    return structs.replace(
        drawn,
        safety_ms=11_000,
        broker_stop_rate=load.data.broker_stop_rate,
        slow_message_chance=drawn.slow_message_chance / 4,
        partition_rate=drawn.partition_rate / 2,
        forged_heartbeat_rate=0.0,
        down_ms=(50, 900),
    )
