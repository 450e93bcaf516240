"""Laws of time travel on every recorded log: however a place is reached, the state is the same."""

from __future__ import annotations

import random
from collections.abc import Iterable
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

from metaquorum.metadata.image import MetadataImage, images_equal
from metaquorum.metadata.inspect.entities.diff import (
    ADDED,
    CHANGED,
    REMOVED,
    EntityChange,
    changes_between,
    diff_points,
)
from metaquorum.metadata.inspect.entities.history import Span, history
from metaquorum.metadata.inspect.entities.views import EVERYTHING, Fields, entities_below, fields_of, touched
from metaquorum.metadata.inspect.log.log import MetadataLog, open_log
from metaquorum.metadata.inspect.log.points import END, Point
from metaquorum.metadata.inspect.walk.states import WalkStep, state_at, steps
from metaquorum.storage.disk.posix import PosixDisk
from tests.conftest import needs_shared_data, shared_data_path
from tests.images import describe_difference

ROOT = shared_data_path() or Path("absent")
pytestmark = [
    pytest.mark.shared_data,
    needs_shared_data,
]
GOLDEN = "kafka-3.7/controller-3000"
WITH_SNAPSHOTS = (
    GOLDEN,
    "kafka-3.7/upgrade/controller-3000",
    "kraft-wild/kafka-4.0-with-snapshot/kafka/kafka-data",
)
DIRECTORIES = sorted(
    str(path.parent.relative_to(ROOT))
    for path in ROOT.rglob("partition.metadata")
    if "synthetic" not in str(path)
    and ("kafka-3.7-wire" not in path.parts or "__cluster_metadata-0" in path.parts)
)
PLACES = 12
"""The number of offsets tested in each log, besides its ends."""


def log_at(name: str) -> MetadataLog:
    return open_log(PosixDisk(), str(ROOT / name))


@cache
def replayed(name: str) -> list[WalkStep]:
    """The whole log, replayed record by record from its first one without a snapshot."""
    log = log_at(name)
    return list(steps(log, Point(offset=0), END))


def sampled(name: str) -> list[int]:
    """Ends of batches: both ends of the log and some in between, and one inside a batch if there is one."""
    ends = [step.next_offset for step in replayed(name)]
    chosen = random.Random(name).sample(ends, min(PLACES, len(ends)))
    return sorted({0, *chosen, ends[-1]})


@pytest.mark.parametrize("name", WITH_SNAPSHOTS)
def test_snapshot_and_tail_are_the_whole_log_at_every_offset(name: str) -> None:
    """By induction: equal where the walk begins, the same changes by every batch, and equal at its end."""
    whole = {step.next_offset: step for step in replayed(name)}
    log = log_at(name)
    places = [position.offset for position in log.snapshots()]
    assert places
    compared = 0
    for start, end in pairwise([*places, log.end_offset]):
        begun = state_at(log, Point(offset=start))
        assert begun.snapshot is not None
        assert images_equal(begun.image, whole[start].after), describe_difference(
            begun.image, whole[start].after
        )
        last = begun.image
        for step in steps(log, Point(offset=start), Point(offset=end)):
            expected = whole[step.next_offset]
            assert changes_between(step.before, step.after) == changes_between(
                expected.before, expected.after
            )
            last = step.after
            compared += 1
        assert images_equal(last, whole[end].after), describe_difference(last, whole[end].after)
    assert compared == sum(offset > places[0] for offset in whole)


@pytest.mark.parametrize("name", DIRECTORIES)
def test_a_place_is_found_from_wherever_the_search_begins(name: str) -> None:
    whole = {0: None, **{step.next_offset: step.after for step in replayed(name)}}
    log = log_at(name)
    for offset in sampled(name)[1:]:
        found = state_at(log, Point(offset=offset))
        expected = whole[offset]
        assert found.end_offset == offset
        assert expected is not None
        assert images_equal(found.image, expected), describe_difference(found.image, expected)
        assert found.problems == []


def applied(
    old: MetadataImage, changes: Iterable[EntityChange], paths: Iterable[str], *, backwards: bool = False
) -> dict[str, Fields]:
    """The fields of `paths` after `changes` are applied to an image, or taken back from it."""
    result = {path: fields for path in paths if (fields := fields_of(old, path)) is not None}
    for change in changes:
        kind = {ADDED: REMOVED, REMOVED: ADDED}.get(change.kind, CHANGED) if backwards else change.kind
        if kind == REMOVED:
            del result[change.entity]
            continue
        fields = result.setdefault(change.entity, {})
        for one in change.fields:
            value, was = (one.old, one.new) if backwards else (one.new, one.old)
            if value is None and was is not None and kind == CHANGED:
                fields.pop(one.name, None)
            else:
                fields[one.name] = value
    return result


@pytest.mark.parametrize("name", DIRECTORIES)
def test_a_difference_says_all_in_both_directions(name: str) -> None:
    log = log_at(name)
    places = sampled(name)
    for a, b in [*pairwise(places), (places[0], places[-1])]:
        old, new = state_at(log, Point(offset=a)), state_at(log, Point(offset=b))
        changes = changes_between(old.image, new.image)
        before = dict(entities_below(old.image, EVERYTHING))
        after = dict(entities_below(new.image, EVERYTHING))
        assert applied(old.image, changes, before) == after
        assert applied(new.image, changes, after, backwards=True) == before
        assert bool(changes) == (before != after)


@pytest.mark.parametrize("name", DIRECTORIES)
def test_every_cause_is_a_record_about_its_entity(name: str) -> None:
    log = log_at(name)
    by_offset = {record.offset: (step, record) for step in replayed(name) for record in step.records}
    places = sampled(name)
    for a, b in [(places[0], places[-1]), (places[len(places) // 2], places[-1])]:
        for change in diff_points(log, state_at(log, Point(offset=a)), state_at(log, Point(offset=b))):
            for cause in (change.cause, *(one.cause for one in change.fields)):
                assert cause is not None, change
                assert a <= cause.offset < b
                step, decoded = by_offset[cause.offset]
                assert decoded.record.type_name == cause.type_name
                about = touched(decoded.record, step.before, step.after)
                assert any(
                    change.entity == path
                    or (cause.type_name == "REMOVE_TOPIC_RECORD" and path in change.entity)
                    for path in about
                ), (change, about)


@pytest.mark.parametrize("name", DIRECTORIES)
def test_histories_are_the_states(name: str) -> None:
    rows = list(history(log_at(name)))
    whole = {step.next_offset: step.after for step in replayed(name)}
    for offset in sampled(name)[1:]:
        expected = dict(entities_below(whole[offset], EVERYTHING))
        told = {row.entity: row.fields for row in rows if holds_at(row, offset) and row.entity != "quorum"}
        assert told == expected
    assert all(row.to_offset is None or row.from_offset < row.to_offset for row in rows)


def holds_at(row: Span, offset: int) -> bool:
    """Whether the row holds in the state before the record `offset`."""
    return row.from_offset < offset and (row.to_offset is None or row.to_offset >= offset)
