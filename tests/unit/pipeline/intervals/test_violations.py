"""Errors are told from the batch that broke a rule to the one that mended it, however soon that came."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from metadata import records as r
from metadata.invariants import ERROR, check_image
from metadata.replay import Replayer
from pipeline.fleet.files import CLUSTERS, TRUTH, write_fleet
from pipeline.fleet.plan import FleetPlan
from pipeline.intervals import ClusterReplay
from storage.batch import RecordBatch
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
    """(rule, path, from, to) of every error, the whole image judged at every batch."""
    engine = Replayer(on_error=lambda error: None)
    since: dict[tuple[str, str], int] = {}
    done: set[tuple[str, str, int, int | None]] = set()
    for batch in given:
        engine.apply_batch(batch)
        offset = batch.header.base_offset
        found = {
            (one.rule, one.where)
            for one in check_image(engine.state().image, limit=10_000)
            if one.severity == ERROR
        }
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
)


def told_errors(given: list[RecordBatch]) -> set[tuple[str, str, int, int | None]]:
    return {
        (row["rule"], row["where"], row["from_offset"], row["to_offset"])
        for row in told(given, "violations")
        if row["severity"] == ERROR and row["rule"] not in STEP_RULES
    }


def some_of(rng: random.Random, low: int = 0) -> tuple[int, ...]:
    return tuple(rng.choices((1, 2, 3, 4), k=rng.randint(low, 4)))


def wild_record(rng: random.Random, number: int) -> object:
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
        lambda: broker(
            rng.randint(1, 3), 10 + number, dirs=tuple(rng.choices((DIR_A, DIR_B, bytes(16)), k=2))
        ),
        lambda: r.UnregisterBrokerRecord(rng.randint(1, 3), 10 + number),
        lambda: partition(rng.randint(0, 12), (1, 2), payments),
        lambda: r.TopicRecord("payments", payments),
        lambda: r.RemoveTopicRecord(payments),
    ]
    return rng.choice(kinds)()


@pytest.mark.parametrize("seed", range(8))
def test_what_is_judged_by_batch_is_what_the_whole_image_shows(seed: int) -> None:
    rng = random.Random(f"wild {seed}")
    lines = [
        (1000 + at, [wild_record(rng, at) for _ in range(rng.choice((1, 1, 2, 30)))]) for at in range(120)
    ]
    given = batches([*BASE, *lines])
    expected = judged_whole(given)
    assert len(expected) > 60
    assert any(end is None for *_, end in expected)
    assert told_errors(given) == expected


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
        assert told_errors(read_log(log)) == planted
        mended += sum(end is not None for *_, end in planted)
    assert mended >= 3


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
