"""Broken rules are told from the batch that broke them to the one that mended it, however soon that came."""

from __future__ import annotations

import json
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from metaquorum.metadata.inspect.checks.check import check_log
from metaquorum.metadata.inspect.checks.node_files import FILE_RULES
from metaquorum.metadata.inspect.checks.record_checks import RECORD_RULES
from metaquorum.metadata.inspect.log.log import MetadataLog, open_log
from metaquorum.metadata.invariants import check_image
from metaquorum.metadata.records import types as r
from metaquorum.metadata.records.types import BrokerFeature
from metaquorum.metadata.replay import Replayer
from metaquorum.pipeline.fleet.files import CLUSTERS, TRUTH, write_fleet
from metaquorum.pipeline.fleet.plan import FleetPlan
from metaquorum.pipeline.intervals import ClusterReplay
from metaquorum.pipeline.intervals.tables.violations import ActiveBrokers
from metaquorum.storage.batches.batch import RecordBatch
from metaquorum.storage.disk.posix import PosixDisk
from tests.unit.metadata.made_logs import memory_disk, strict
from tests.unit.metadata.random_logs import random_node
from tests.unit.pipeline.intervals.telling import (
    DIR_A,
    DIR_B,
    DIR_C,
    ORDERS,
    PAYMENTS,
    Line,
    alive,
    batches,
    broker,
    change,
    feed,
    leads,
    partition,
    read_log,
    tables_of,
    told,
)

BASE: list[Line] = [
    (0, [leads(3000)]),
    (0, [broker(at, at, dirs=(directory,)) for at, directory in ((1, DIR_A), (2, DIR_B), (3, DIR_C))]),
    (0, [alive(at, at) for at in (1, 2, 3)]),
    (10, [r.TopicRecord("orders", ORDERS), *(partition(at, (1, 2, 3)) for at in range(4))]),
]


def judged_whole(given: list[RecordBatch]) -> set[tuple[str, str, int, int | None]]:
    """(rule, path, from, to) of everything that is wrong, the whole image judged at every batch."""
    engine = Replayer(on_error=lambda error: None)
    since: dict[tuple[str, str], int] = {}
    done: set[tuple[str, str, int, int | None]] = set()
    for batch in given:
        engine.apply_batch(batch)
        offset = batch.header.base_offset
        found = {(one.rule, one.where) for one in check_image(engine.state().image, limit=10_000)}
        for key in since.keys() - found:
            done.add((*key, since.pop(key), offset))
        for key in found - since.keys():
            since[key] = offset
    return done | {(*key, start, None) for key, start in since.items()}


STEP_RULES = (
    "replay",
    "partition-epoch-grows",
    "leader-epoch-grows",
    "partitions-stay",
    "broker-epoch-grows",
    "metadata-version-grows",
)


def told_violations(given: list[RecordBatch]) -> set[tuple[str, str, int, int | None]]:
    return {
        (row["rule"], row["where"], row["from_offset"], row["to_offset"])
        for row in told(given, "violations")
        if row["rule"] not in STEP_RULES
    }


FEATURES = (BrokerFeature("metadata.version", 15, 19),)


def registered(number: int, epoch: int, epochs: dict[int, int], **more: Any) -> object:
    epochs[number] = epoch
    return msgspec.structs.replace(broker(number, epoch, dirs=(DIR_A,)), **more)


def fencing(rng: random.Random, epochs: dict[int, int]) -> object:
    """A broker that is fenced, comes back, or shuts down. A record that names an old epoch is refused."""
    number = rng.randint(1, 3)
    kind = rng.choice((r.FenceBrokerRecord, r.UnfenceBrokerRecord))
    if rng.random() < 0.3:
        return r.BrokerRegistrationChangeRecord(number, epochs[number], in_controlled_shutdown=1)
    return kind(number, epochs[number])


def some_of(rng: random.Random, low: int = 0) -> tuple[int, ...]:
    return tuple(rng.choices((1, 2, 3, 4), k=rng.randint(low, 4)))


def wild_record(rng: random.Random, number: int, epochs: dict[int, int]) -> object:
    """A record that no correct controller writes, or one that mends something."""
    index = rng.randrange(4)
    payments = bytes([number // 10]) + PAYMENTS[1:]  # ids are never used twice
    replicas = rng.choice([(1, 2, 3), some_of(rng, 1)])
    directories = tuple(rng.choices((DIR_A, DIR_B, DIR_C), k=len(replicas)))
    kinds: list[Any] = [
        lambda: change(index, isr=(1, 2), leader=1),
        lambda: change(index, isr=(1, 2, 3), leader=2, replicas=(1, 2, 3), directories=(DIR_A, DIR_B, DIR_C)),
        lambda: change(index, isr=some_of(rng)),
        lambda: change(index, leader=rng.choice((-1, 1, 4))),
        lambda: change(index, replicas=replicas, directories=directories),
        lambda: change(index, adding_replicas=some_of(rng), removing_replicas=some_of(rng)),
        lambda: change(index, eligible_leader_replicas=list(some_of(rng))),
        lambda: registered(
            *(rng.randint(1, 3), 10 + number, epochs),
            log_dirs=tuple(rng.choices((DIR_A, DIR_B, bytes(16)), k=2)),
        ),
        lambda: registered(rng.randint(1, 3), 10 + number, epochs, features=FEATURES),
        lambda: r.UnregisterBrokerRecord(rng.randint(1, 3), 10 + number),
        lambda: r.FeatureLevelRecord("metadata.version", rng.choice((14, 19))),
        lambda: r.ConfigRecord(
            2, rng.choice(("orders", "payments", "nothing")), "a", rng.choice(("1", None))
        ),
        *[lambda: fencing(rng, epochs)] * 6,
        lambda: partition(rng.randint(0, 12), (1, 2), payments),
        lambda: r.TopicRecord("payments", payments),
        lambda: r.RemoveTopicRecord(payments),
    ]
    return rng.choice(kinds)()


@pytest.mark.parametrize("seed", range(8))
def test_what_is_judged_by_batch_is_what_the_whole_image_shows(seed: int) -> None:
    rng, epochs = random.Random(f"wild {seed}"), {1: 1, 2: 2, 3: 3}
    lines = [
        (1000 + at, [wild_record(rng, at, epochs) for _ in range(rng.choice((1, 1, 2, 30)))])
        for at in range(120)
    ]
    given = batches([*BASE, *lines])
    expected = judged_whole(given)
    assert len(expected) > 60
    assert any(end is None for *_, end in expected)
    assert told_violations(given) == expected
    rules = {rule for rule, *_ in expected}
    assert {"leader-active", "isr-active", "config-of-topic"} <= rules


def test_a_planted_error_that_mends_soon_is_told_exactly(tmp_path: Path) -> None:
    kinds = ("broken_invariant", "broker_crash", "reassignment")
    write_fleet(FleetPlan(clusters=2, records=5000, seed=3, kinds=kinds, damaged_every=0), tmp_path)
    mended = 0
    for path in sorted((tmp_path / TRUTH).glob("cluster-*.json")):
        truth = json.loads(path.read_text())
        (log,) = (tmp_path / CLUSTERS / path.stem).glob("*/__cluster_metadata-0")
        planted = {
            (one["rule"], one["where"], one["broken_offset"], one["mended_offset"])
            for one in truth["incidents"]
            if one["kind"] == "broken_invariant"
        }
        assert told_violations(read_log(log)) == planted
        mended += sum(end is not None for *_, end in planted)
    assert mended >= 3


def first_told(given: list[RecordBatch]) -> dict[tuple[str, str], int]:
    """Where each rule was first broken, by (rule, path), as the table tells it."""
    found: dict[tuple[str, str], int] = {}
    for row in told(given, "violations"):
        if row["rule"] != "replay":
            found.setdefault((row["rule"], row["where"]), row["from_offset"])
    return found


def first_found(log: MetadataLog) -> dict[tuple[str, str], int]:
    """The same as `log check` finds it."""
    report = check_log(log)
    assert not report.dropped and not report.problems
    of_others = ("record-applies", "snapshot-agrees", *RECORD_RULES, *FILE_RULES)  # no invariants of states
    return {(one.rule, one.where): one.offset for one in report.findings if one.rule not in of_others}


@pytest.mark.parametrize("seed", range(10))
def test_the_table_tells_what_log_check_finds(seed: int) -> None:
    log = random_node(memory_disk(), seed, wild=0.08, garbage=False).log
    expected = first_found(log)
    assert len(expected) > 10
    assert first_told(strict(log)) == expected


def test_the_table_tells_what_log_check_finds_in_recorded_logs(shared_data: Path) -> None:
    found = 0
    for path in (
        shared_data / "kafka-3.7" / "controller-3000",
        *(shared_data / "kraft-wild").rglob("__c*-0"),
    ):
        log = open_log(PosixDisk(), str(path))
        if log.start_offset or check_log(log).problems:
            continue
        assert first_told(read_log(Path(log.path))) == first_found(log), log.path
        found += 1
    assert found > 8


def test_a_warning_between_two_batches_is_told_from_one_to_the_other() -> None:
    lines: list[Line] = [
        *BASE,
        (100, [r.FenceBrokerRecord(1, 1)]),
        (200, [change(at, isr=(2, 3), leader=2) for at in range(4)]),
    ]
    given = batches(lines)
    rows = [row for row in told(given, "violations") if row["rule"] == "leader-active"]
    assert [row["where"] for row in rows] == [f"topic/orders/{at}" for at in range(4)]
    fence, change_at = given[-2].header.base_offset, given[-1].header.base_offset
    assert {(row["severity"], row["from_offset"], row["to_offset"]) for row in rows} == {
        ("warning", fence, change_at)
    }


def test_warnings_end_with_what_mends_them() -> None:
    """A replica on an unknown broker until it registers; settings of a topic until the topic is there."""
    strange = {"replicas": (1, 2, 4), "isr": (1, 2), "directories": (DIR_A, DIR_B, bytes([9]) * 16)}
    mended = [broker(4, 20, dirs=(bytes([9]) * 16,)), r.TopicRecord("payments", PAYMENTS)]
    given = batches(
        [
            *BASE,
            (100, [change(0, **strange)]),
            (110, [r.ConfigRecord(2, "payments", "retention.ms", "1")]),
            *[(200 + at, [record]) for at, record in enumerate(mended)],
        ]
    )
    *_, first, second, third, fourth = [batch.header.base_offset for batch in given]
    assert told_violations(given) == {
        ("replicas-registered", "topic/orders/0", first, third),
        ("config-of-topic", "config/topic/payments", second, fourth),
    }
    assert told_violations(given) == judged_whole(given)


def test_an_error_that_is_open_where_a_run_goes_on_ends_in_the_next() -> None:
    noise: list[Line] = [(1500, [r.NoOpRecord()] * 100) for _ in range(30)]
    lines = [*BASE, *noise[:5], (1600, [change(isr=(2,), leader=1)]), *noise, (1700, [change(isr=(1, 2))])]
    given = batches([*lines, *noise])
    end = given[-1].header.next_offset
    cut = next(at for at, one in enumerate(given) if one.header.next_offset > 2500)
    first = ClusterReplay("made", log_end=given[cut].header.base_offset)
    feed(first, given[:cut])
    final = first.final_rows()["violations"]
    resumed = ClusterReplay("made", log_end=end, saved=first.saved_state)
    rest = [one for one in given if one.header.base_offset >= first.resume_point[0]]
    rows = [*final, *tables_of(feed(resumed, rest))["violations"]]
    whole = tables_of(feed(ClusterReplay("made", log_end=end), given))["violations"]
    assert sorted(map(tuple, rows)) == whole
    assert [row[:1] for row in whole] == [("leader-in-isr",)]


@pytest.mark.parametrize(
    ("first", "rules"),
    [
        (change(0, leader=2), ["leader-epoch-grows", "partition-epoch-grows"]),
        (change(0, isr=(1, 2)), ["partition-epoch-grows"]),
    ],
)
def test_a_partition_that_is_written_again_turns_its_epochs_back(first: Any, rules: list[str]) -> None:
    """Also beside others that are new, and where nothing else is to be judged."""
    again = [partition(9, (1, 2, 3)), partition(0, (1, 2, 3))]
    given = batches([*BASE, (20, [first]), (30, again), (40, [r.ConfigRecord(2, "orders", "a", "1")])])
    found = [row for row in told(given, "violations") if row["rule"] in STEP_RULES]
    base = given[-2].header.base_offset
    assert sorted(row["rule"] for row in found) == rules
    assert {(row["where"], row["from_offset"]) for row in found} == {("topic/orders/0", base)}


@pytest.mark.parametrize(
    ("leader", "isr", "replicas", "carry"),
    [
        (1, (1,), (1, 2), True),
        (1, (1, 2), (1, 2), True),
        (1, (1, 3), (1, 3), False),
        (1, (1, 2, 3), (1, 2, 3), False),
        (3, (3,), (3,), False),
        (-1, (3,), (3,), True),  # the last member stays
        (1, (1,), (1, 9), False),
    ],
)
def test_brokers_carry_a_partition_if_all_are_known_and_those_in_sync_are_active(
    leader: int, isr: tuple[int, ...], replicas: tuple[int, ...], carry: bool
) -> None:
    """Broker 3 is fenced, and 9 is not registered. What was found before counts until brokers change."""
    partition: Any = SimpleNamespace(leader=leader, isr=isr, replicas=replicas)
    brokers = ActiveBrokers()
    states: Any = {at: SimpleNamespace(is_active=at != 3) for at in (1, 2, 3)}
    brokers.set(states)
    assert [brokers.carry(partition) for _ in range(2)] == [carry, carry]
    brokers.set({at: SimpleNamespace(is_active=True) for at in range(10)})  # type: ignore[misc]
    assert brokers.carry(partition)
