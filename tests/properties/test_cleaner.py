"""Whatever a log holds, and whenever power fails while it is cleaned: no key loses its last value."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaquorum.storage.cleaner.cleaning import Cleaning, segment_facts
from metaquorum.storage.cleaner.plan import plan_cleaning
from metaquorum.storage.cleaner.task import CleaningEndedError
from metaquorum.storage.errors import FileMissingError
from metaquorum.storage.partition.partition_log import PartitionLog
from metaquorum.testing.faults import PowerLossError
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
        # Below the point up to which it is clean every key is there once.
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
    """Two outcomes at each point: what was not synced is there or is not. Then the pass is made again."""

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


def test_a_log_that_is_cut_or_trimmed_ends_the_pass() -> None:
    for change in ("cut", "trim", "close"):
        log = load(make_disk(1))
        writer = Writer(log, random.Random(2))
        writer.write(30, transactions=False)
        settle(log)
        facts = segment_facts(log)
        plan = plan_cleaning(
            facts, first_dirty=0, stable_to=log.end_offset, settings=SETTINGS, now_ms=writer.now_ms
        )
        assert plan is not None
        cleaning = Cleaning(log, plan, SETTINGS, now_ms=writer.now_ms, key_bytes=1 << 20)
        for _ in cleaning.pieces():
            pass
        cleaning.swap()
        next(cleaning.pieces())
        if change == "cut":
            log.truncate_to(facts[2].base_offset)
        elif change == "trim":
            log.delete_segments_before(facts[1].base_offset)
        else:
            log.close()
        with pytest.raises(CleaningEndedError):
            while True:
                for _ in cleaning.pieces():
                    pass
                cleaning.swap()
        assert not [name for name in log._disk.list_directory("/d/t-0") if ".cleaned" in name]
        assert cleaning.result is None


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
