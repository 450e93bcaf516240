"""The load on brokers that hold data: topics, clients and faults of one seed.

As in `profile`, each kind of fault is off as often as it is on. Drawn from the seed alone.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from msgspec.structs import replace

from tests.sim.profile import FaultProfile, calm_profile, draw_profile

DATA_FROM = 2_000
"""Seeds from here on run brokers with real replicas on simulated disks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPlan:
    """A topic and its configuration. Without `unclean`, and on disks that are not lost, no acknowledged
    record may be lost. `retention_bytes` -1: nothing is removed."""

    name: str
    partitions: int
    factor: int
    min_insync: int
    unclean: bool = False
    segment_bytes: int = 4_096
    retention_bytes: int = -1

    def configs(self) -> tuple[tuple[str, str], ...]:
        found = [
            ("min.insync.replicas", str(self.min_insync)),
            ("unclean.leader.election.enable", "true" if self.unclean else "false"),
            ("segment.bytes", str(self.segment_bytes)),
            ("file.delete.delay.ms", "1000"),
        ]
        if self.retention_bytes >= 0:
            found.append(("retention.bytes", str(self.retention_bytes)))
        return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataLoad:
    """Rates are per second of simulated time for the whole world, chances are 0..1, durations are ms."""

    brokers: int
    directories: int
    topics: tuple[TopicPlan, ...]
    flush_before_ack: bool
    producers: int
    in_flight_max: int
    produce_pause_ms: tuple[int, int]
    produce_timeout_ms: int
    consumers: int
    fetch_wait_ms: int
    replica_lag_ms: int
    io_ms: tuple[float, float]
    sync_ms: tuple[float, float]
    slow_io_chance: float
    slow_io_ms: int
    broker_crash_rate: float
    crash_leader_rate: float
    crash_active_rate: float
    all_crash_rate: float
    power_loss_chance: float
    directory_death_rate: float
    directory_hang_rate: float
    emptied_chance: float
    repaired_chance: float
    link_cut_rate: float
    follower_cut_rate: float
    reassign_rate: float
    elect_rate: float
    delete_rate: float
    broker_stop_rate: float
    slice_records: int
    eligible_leaders: bool
    self_fencing: bool
    lonely_rate: float
    rot_chance: float
    move_rate: float


def _draw_topics(rng: random.Random, brokers: int) -> tuple[TopicPlan, ...]:
    """One topic that keeps everything, and others that may lose records."""
    segment = rng.choice((1_400, 2_000, 16_384))  # a batch has up to 1,300 bytes, and must fit
    kept = TopicPlan(
        name="kept",
        partitions=rng.choice((1, 2, 3)),
        factor=min(3, brokers),
        min_insync=rng.choice((1, 2, 2)),
        segment_bytes=segment,
    )
    others = [
        TopicPlan(name="unclean", partitions=1, factor=2, min_insync=1, unclean=True, segment_bytes=segment),
        TopicPlan(
            name="short", partitions=1, factor=3, min_insync=1, segment_bytes=1_400, retention_bytes=3_000
        ),
        TopicPlan(name="comes-and-goes", partitions=2, factor=2, min_insync=1, segment_bytes=segment),
        TopicPlan(name="single", partitions=2, factor=1, min_insync=1, segment_bytes=segment),
    ]
    return (kept, *[each for each in others if rng.random() < 0.5])


def draw_data_load(seed: int) -> DataLoad:
    """The load of a seed."""
    rng = random.Random(f"data of {seed}")

    def maybe(value: float, chance: float = 0.5) -> float:
        return value if rng.random() < chance else 0.0

    # Drawn separately, so that the other faults of a seed stay the same.
    self_fencing = random.Random(f"self-fencing of {seed}").random() < 0.7
    brokers = rng.choice((3, 3, 4))
    flush = rng.random() < 0.85
    return DataLoad(
        brokers=brokers,
        directories=rng.choice((2, 2, 3)),
        topics=_draw_topics(rng, brokers),
        flush_before_ack=flush,
        producers=rng.choice((1, 2, 3)),
        in_flight_max=rng.choice((1, 3, 5)),
        produce_pause_ms=rng.choice(((10, 60), (20, 250))),
        produce_timeout_ms=rng.choice((400, 1_500)),
        consumers=1,
        fetch_wait_ms=rng.choice((20, 100)),
        replica_lag_ms=rng.choice((400, 900)),
        io_ms=rng.choice(((0.05, 0.3), (0.1, 2.0))),
        sync_ms=rng.choice(((0.1, 2.0), (1.0, 15.0), (10.0, 80.0))),
        slow_io_chance=maybe(0.01),
        slow_io_ms=rng.choice((60, 400)),
        broker_crash_rate=maybe(rng.choice((0.15, 0.4)), 0.6),
        crash_leader_rate=maybe(0.3),
        crash_active_rate=maybe(0.15),
        all_crash_rate=maybe(0.2),
        power_loss_chance=rng.choice((0.5, 1.0)) if flush else 0.0,
        directory_death_rate=maybe(0.25),
        directory_hang_rate=maybe(0.3),
        emptied_chance=maybe(0.5, 0.6),
        repaired_chance=maybe(0.7, 0.7),
        link_cut_rate=maybe(0.3),
        follower_cut_rate=maybe(0.3),
        reassign_rate=maybe(0.4),
        elect_rate=maybe(0.3),
        delete_rate=maybe(0.3),
        broker_stop_rate=maybe(0.2),
        slice_records=rng.choice((1, 3, 50)),
        eligible_leaders=rng.random() < 0.5,
        self_fencing=self_fencing,
        lonely_rate=0.0 if self_fencing else 0.4,
        rot_chance=random.Random(f"rot of {seed}").choice((0.0, 0.3)),
        move_rate=random.Random(f"moves of {seed}").choice((0.0, 0.5, 2.0)),
    )


def draw_data_profile(seed: int, load: DataLoad) -> FaultProfile:
    """Faults of the network, the clocks and the machines; milder than with metadata only, because every
    broker must make progress between two faults."""
    rng = random.Random(f"faults of {seed}")
    drawn = draw_profile(rng)
    return replace(
        drawn,
        controllers=rng.choice((1, 3, 3)),
        brokers=load.brokers,
        clients=0,
        safety_ms=rng.choice((5_000, 8_000)),
        loss_chance=drawn.loss_chance / 6,
        slow_message_ms=min(drawn.slow_message_ms, 1_200),
        crash_rate=0.0,
        pause_rate=drawn.pause_rate / 2,
        broker_stop_rate=load.broker_stop_rate,
        partition_ms=(200, 3_000),
        down_ms=(50, 1_500),
        clock_offset_ms=0,
        transfer_rate=0.0,
    )


def quiet_data_load(
    *topics: TopicPlan,
    brokers: int = 3,
    directories: int = 2,
    flush_before_ack: bool = True,
    eligible_leaders: bool = False,
    self_fencing: bool = True,
) -> DataLoad:
    """Producers and consumers, and no fault: for stories that add their own."""
    return DataLoad(
        brokers=brokers,
        directories=directories,
        topics=topics or (TopicPlan(name="kept", partitions=2, factor=3, min_insync=2),),
        flush_before_ack=flush_before_ack,
        producers=1,
        in_flight_max=3,
        produce_pause_ms=(30, 120),
        produce_timeout_ms=1_500,
        consumers=1,
        fetch_wait_ms=50,
        replica_lag_ms=600,
        io_ms=(0.05, 0.3),
        sync_ms=(0.5, 3.0),
        slow_io_chance=0.0,
        slow_io_ms=0,
        broker_crash_rate=0.0,
        crash_leader_rate=0.0,
        crash_active_rate=0.0,
        all_crash_rate=0.0,
        power_loss_chance=1.0,
        directory_death_rate=0.0,
        directory_hang_rate=0.0,
        emptied_chance=0.0,
        repaired_chance=0.0,
        link_cut_rate=0.0,
        follower_cut_rate=0.0,
        reassign_rate=0.0,
        elect_rate=0.0,
        delete_rate=0.0,
        broker_stop_rate=0.0,
        slice_records=50,
        eligible_leaders=eligible_leaders,
        self_fencing=self_fencing,
        lonely_rate=0.0,
        rot_chance=0.0,
        move_rate=0.0,
    )


def quiet_data_profile(load: DataLoad, *, controllers: int = 3) -> FaultProfile:
    """No faults of machines or network."""
    return replace(calm_profile(controllers=controllers, brokers=load.brokers), clients=0)
