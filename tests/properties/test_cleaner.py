"""Whatever a log holds, and whenever power is lost while it is cleaned: no key loses its last value."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaquorum.storage.cleaner.cleaning import Cleaning, CleaningEndedError, segment_facts
from metaquorum.storage.cleaner.plan import plan_cleaning
from metaquorum.storage.errors import DiskError, FileMissingError
from metaquorum.storage.partition.partition_log import PartitionLog
from metaquorum.testing.faulty_file import PowerLossError
from tests.unit.storage.cleaner_bench import SETTINGS, Writer, check, clean, load, make_disk, settle, told


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 2**32),
    st.lists(st.integers(0, 12), min_size=1, max_size=6),
    st.sampled_from([300, 1 << 20]),
)
def test_any_log_keeps_the_last_value_of_every_key(seed: int, rounds: list[int], key_bytes: int) -> None:
    log = load(make_disk(seed))
    writer = Writer(log, random.Random(seed))
    cleaned_to: int | None = None
    for batches in rounds:
        writer.write(batches)
        settle(log)
        end, size = log.end_offset, log.size_bytes
        before = cleaned_to
        cleaned_to = clean(log, cleaned_to, writer.now_ms, key_bytes=key_bytes)
        assert log.end_offset == end and log.size_bytes <= size + 100
        check(writer, log)
        # Below the point up to which it is clean, every key occurs once.
        if cleaned_to is not None and cleaned_to != before and not before:
            kept = [one.key for one in told(log) if one.offset < cleaned_to]
            newest = writer.last()
            assert all(kept.count(key) <= 1 for key in kept if newest[key or b""].offset < cleaned_to)
    again = load_again(log)
    check(writer, again)
    for offset in range(again.start_offset, again.end_offset):
        again.read_range(offset, again.end_offset, 1)
    assert again.producers.all() == log.producers.all()


def load_again(log: PartitionLog) -> PartitionLog:
    settle(log)
    log.close()
    return load(log._disk)  # type: ignore[arg-type]


def test_tombstones_and_markers_go_when_their_time_has_come() -> None:
    log = load(make_disk(1))
    writer = Writer(log, random.Random(5))
    writer.write(40)
    for producer in sorted(writer.open):
        writer.end(producer, committed=False)
    writer.write(8, transactions=False)
    settle(log)
    begun = writer.now_ms
    cleaned_to = clean(log, None, begun)
    assert cleaned_to is not None
    tombs = [one for one in told(log) if one.value is None and one.offset < cleaned_to]
    assert tombs
    sizes = []
    for later in (0, SETTINGS.delete_retention_ms - 1, SETTINGS.delete_retention_ms, 5_000):
        writer.write(3, keys=1, transactions=False)
        settle(log)
        cleaned_to = clean(log, cleaned_to, begun + later)
        sizes.append([one for one in told(log) if one in tombs and one.key != b"k0"])
        check(writer, log)
    assert sizes[1] and not sizes[2]


@pytest.mark.parametrize("seed", range(2))
def test_power_loss_at_every_operation_of_a_pass(seed: int) -> None:
    """Two outcomes at each point: what was not synced is there or is not. Then the pass is repeated."""

    def prepared() -> tuple[PartitionLog, Writer]:
        log = load(make_disk(seed))
        writer = Writer(log, random.Random(seed))
        writer.write(25)
        settle(log)
        return log, writer

    log, writer = prepared()
    end = clean(log, None, writer.now_ms)
    expected = told(log)
    assert end is not None and len(expected) < len(writer.records)
    crash_after, crashed = 0, True
    while crashed:
        for outcome in range(2):
            log, writer = prepared()
            disk = log._disk
            disk.crash_after = crash_after  # type: ignore[attr-defined]
            disk.rng.seed(outcome)  # type: ignore[attr-defined]
            crashed = False
            try:
                clean(log, None, writer.now_ms)
            except PowerLossError:
                crashed = True
            found = load(disk.crash())  # type: ignore[attr-defined]
            assert found.end_offset == log.end_offset
            check(writer, found)
            settle(found)
            assert clean(found, None, writer.now_ms) == end
            assert [one.offset for one in told(found)] == [one.offset for one in expected]
            check(writer, found)
            assert not [name for name in found._disk.list_directory("/d/t-0") if name.count(".") > 1]
        crash_after += 1
    assert crash_after > 30


def test_a_crash_while_an_interrupted_swap_is_finished() -> None:
    for first in range(0, 60, 5):
        for second in range(6):
            log = load(make_disk(second))
            writer = Writer(log, random.Random(2))
            writer.write(20)
            settle(log)
            disk = log._disk
            disk.crash_after = first  # type: ignore[attr-defined]
            try:
                clean(log, None, writer.now_ms)
            except PowerLossError:
                pass
            again = disk.crash()  # type: ignore[attr-defined]
            again.crash_after = second
            try:
                load(again)
            except PowerLossError:
                again = again.crash()
            again.crash_after = None
            check(writer, load(again))


def dirty_log() -> tuple[PartitionLog, Cleaning]:
    """Its pass has several segments to read twice, and to write."""
    log = load(make_disk(1))
    writer = Writer(log, random.Random(2))
    writer.write(30, transactions=False)
    settle(log)
    facts = segment_facts(log)
    plan = plan_cleaning(
        facts, first_dirty=0, stable_to=log.end_offset, settings=SETTINGS, now_ms=writer.now_ms
    )
    assert plan is not None
    return log, Cleaning(log, plan, SETTINGS, now_ms=writer.now_ms, key_bytes=1 << 20)


def steps_of(cleaning: Cleaning) -> Iterator[None]:
    """The whole pass, in steps of a piece or a swap."""
    while cleaning.result is None:
        for _ in cleaning.pieces():
            yield
        if cleaning.staged is not None:
            cleaning.swap()
            yield


CHANGES: dict[str, Callable[[PartitionLog], object]] = {
    "cut": lambda log: log.truncate_to(2),
    "cut above": lambda log: log.truncate_to(segment_facts(log)[-1].base_offset),
    "trim": lambda log: log.delete_segments_before(segment_facts(log)[1].base_offset),
    "reset": lambda log: log.start_over(500),
    "close": lambda log: log.close(),
}


def left_behind(log: PartitionLog) -> list[str]:
    """Temporary files of segments, and files that are still open."""
    log.close()
    names = [name for name in log._disk.list_directory("/d/t-0") if ".cleaned" in name or ".swap" in name]
    return names + [str(file.path) for file in log.pool._open]


@pytest.mark.parametrize("change", CHANGES)
def test_a_log_that_is_changed_at_any_moment_ends_the_pass(change: str) -> None:
    """Before its next piece, so that nothing is mistaken for damage; what it had begun is removed."""
    count = sum(1 for _ in steps_of(dirty_log()[1]))
    assert count > 12
    for after in range(count):
        log, cleaning = dirty_log()
        steps = steps_of(cleaning)
        for _ in range(after):
            next(steps)
        CHANGES[change](log)
        with pytest.raises(CleaningEndedError):
            list(steps)
        assert cleaning.result is None
        assert left_behind(log) == []


@pytest.mark.parametrize("operation", ["read", "write", "open", "sync", "sync_directory"])
def test_a_pass_that_a_disk_fails_in_leaves_nothing_behind(operation: str) -> None:
    """At the first operation and at every later one. Swaps are completed at the next start, if not at
    once."""
    for after in range(100):
        log, cleaning = dirty_log()
        log._disk.inject("/d/t-0", operation=operation, after=after, count=1)  # type: ignore[attr-defined]
        try:
            for _ in steps_of(cleaning):
                pass
        except DiskError:
            left = left_behind(log)
            assert not [name for name in left if "swap" not in name]
            again = load(log._disk)  # type: ignore[arg-type]
            assert left_behind(again) == []
        else:
            break
    assert 2 < after < 99


def test_a_pass_without_room_for_every_key_leaves_the_segments_behind_those_alone() -> None:
    log, whole = dirty_log()
    facts = segment_facts(log)
    keys = 400  # two of them
    cleaning = Cleaning(log, whole.task.plan, SETTINGS, now_ms=10**13, key_bytes=keys)
    before = {one.base_offset: one.size_bytes for one in facts}
    for _ in steps_of(cleaning):
        pass
    result = cleaning.result
    assert result is not None and facts[0].base_offset < result.cleaned_to < facts[-1].base_offset
    behind = [one.base_offset for one in facts if one.base_offset >= result.cleaned_to]
    after = {one.base_offset: one.size_bytes for one in segment_facts(log)}
    assert {base: after.get(base) for base in behind} == {base: before[base] for base in behind}


@pytest.mark.parametrize("changed", [True, False])
def test_a_file_that_is_gone_is_an_error_unless_the_log_has_changed(changed: bool) -> None:
    log = load(make_disk(1))
    writer = Writer(log, random.Random(2))
    writer.write(30, transactions=False)
    settle(log)
    plan = plan_cleaning(
        segment_facts(log), first_dirty=0, stable_to=log.end_offset, settings=SETTINGS, now_ms=writer.now_ms
    )
    assert plan is not None
    cleaning = Cleaning(log, plan, SETTINGS, now_ms=writer.now_ms, key_bytes=1 << 20)

    def gone(*_: object) -> bytes:
        log._shape += changed
        raise FileMissingError("segment")

    cleaning._pass._read = gone  # type: ignore[method-assign]
    with pytest.raises(CleaningEndedError if changed else FileMissingError):
        list(cleaning.pieces())
