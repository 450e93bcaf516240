"""The search for the first state in which a check is false: the method, the record, and what it reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from metaquorum.metadata.errors import InspectError
from metaquorum.metadata.inspect.checks.bisect import BINARY, HEADERS, SCAN, Bisection, bisect
from metaquorum.metadata.inspect.checks.checks import HEALTH, STEP_RULES, named_check, predicate_check
from metaquorum.metadata.inspect.checks.predicate import PredicateError, compile_predicate
from metaquorum.metadata.inspect.checks.predicate_names import IMAGE_RULES
from metaquorum.metadata.inspect.log.log import open_log
from metaquorum.metadata.inspect.log.points import END, Point
from metaquorum.metadata.records import types as r
from metaquorum.storage.disk.interface import join, read_file
from metaquorum.storage.disk.posix import PosixDisk
from metaquorum.storage.files.snapshots import snapshot_name
from metaquorum.storage.types import LogPosition
from tests.conftest import REPOSITORY, needs_shared_data, shared_data_path
from tests.unit.metadata.made_logs import (
    ORDERS,
    STORY,
    Batch,
    add_snapshot,
    flip,
    make_node,
    memory_disk,
    topic,
    write,
)

GOLDEN = (shared_data_path() or Path("absent")) / "kafka-3.7" / "controller-3000"


def golden(
    predicate: str, *, monotone: bool = False, start: Point | None = None, end: Point = END
) -> Bisection:
    check = predicate_check(compile_predicate(predicate), vouched=monotone)
    return bisect(open_log(PosixDisk(), str(GOLDEN)), check, start, end)


def place(found: Bisection) -> tuple[int | None, int | None]:
    """(offset of the batch, offset of the record)."""
    step, record = found.step, found.record
    return (None if step is None else step.offset), (None if record is None else record.offset)


@needs_shared_data
@pytest.mark.parametrize(
    ("name", "batch", "record"),
    [
        ("all-led", 833, 838),
        ("full-isr", 833, 833),
        ("min-isr", 833, 882),
        ("clean-elections", 1921, 1921),
        ("no-errors", None, None),
        ("no-violations", None, None),
        ("leader-epoch-grows", None, None),
    ],
)
def test_named_checks_scan_the_recorded_scenario(name: str, batch: int | None, record: int | None) -> None:
    found = bisect(open_log(PosixDisk(), str(GOLDEN)), named_check(name))
    assert (found.method, place(found)) == (SCAN, (batch, record))
    assert found.is_found is (batch is not None)


@needs_shared_data
def test_a_vouched_predicate_is_searched_by_halving_snapshots() -> None:
    scanned = golden("len(topics) < 24")
    halved = golden("len(topics) < 24", monotone=True)
    assert (scanned.method, halved.method) == (SCAN, BINARY)
    assert place(scanned) == place(halved) == (751, 751)
    assert halved.snapshots == 15 and halved.loaded <= 4
    assert halved.batches < scanned.batches / 2
    assert scanned.changes() == halved.changes()
    assert {change.entity for change in halved.changes()} >= {
        "topic/__transaction_state",
        "topic/__transaction_state/4",
    }
    assert "--monotone" in halved.reason


@needs_shared_data
@pytest.mark.parametrize("limit", [100, 1850, 2016, 3299, 4000, 4757])
def test_offsets_and_epochs_are_found_without_states(limit: int) -> None:
    found = golden(f"offset <= {limit}")
    assert found.method == HEADERS
    assert found.step is not None
    assert found.step.offset <= limit < found.step.next_offset
    assert found.record is not None and found.record.offset == limit


@needs_shared_data
def test_the_first_record_of_an_epoch_is_found_from_the_right_segment() -> None:
    found = golden("epoch < 6")
    assert place(found) == (2070, 2070)
    assert found.batches < 200, "the segment before 1850 is not read"
    assert golden("epoch <= 6").step is None


@needs_shared_data
def test_three_values() -> None:
    absent = golden("broker(77).fenced")
    assert (absent.step, absent.always_false) == (None, False), "never there is never false"
    wrong = golden("offset < 0")
    assert (wrong.step, wrong.always_false) == (None, True)
    late = golden("len(brokers) == 4")
    assert place(late) == (2323, 2323), "false before it was true is no news"
    with pytest.raises(PredicateError):
        golden("partition('t06', 9).leadr == 1")


@needs_shared_data
def test_the_range_can_be_narrowed() -> None:
    first = golden("leaderless() == 0")
    after = golden("leaderless() == 0", start=Point(offset=930))
    assert (place(first), place(after)) == ((833, 838), (1019, 1025))
    assert golden("leaderless() == 0", end=Point(offset=833)).step is None
    assert golden("leaderless() == 0", end=Point(time_ms=1795230692898)).step is None
    bounded = golden("len(topics) < 24", monotone=True, end=Point(offset=700))
    assert (bounded.step, bounded.end_offset) == (None, 700)


def story(extra: int = 40) -> list[Batch]:
    """The story, then topics one by one."""
    more: list[Batch] = []
    for number in range(extra):
        more.append((3, topic(f"made-{number:03d}", bytes([number]) * 16, 1)))
        more.append((3, [r.NoOpRecord()]))
    return [*STORY, *more]


def test_every_answer_of_the_halving_is_that_of_the_scan() -> None:
    disk = memory_disk()
    node = make_node(disk, story(), per_segment=12)
    for offset in (18, 30, 45, 60, 75, 90, 105):
        add_snapshot(node, offset)
    for limit in range(2, 45):
        predicate = compile_predicate(f"len(topics) < {limit}")
        scanned = bisect(node.log, predicate_check(predicate))
        halved = bisect(node.log, predicate_check(predicate, vouched=True))
        assert (halved.method, place(halved)) == (BINARY, place(scanned)), limit
        assert halved.always_false is False
        assert halved.loaded <= 3


def test_a_snapshot_that_is_not_whole_is_left_out_and_told() -> None:
    disk = memory_disk()
    node = make_node(disk, story())
    for offset in (18, 45, 75):
        add_snapshot(node, offset)
    path = join(node.log.directory, snapshot_name(LogPosition(3, 45)))
    write(disk, path, read_file(disk, path)[:-40])
    told: list[str] = []
    check = predicate_check(compile_predicate("len(topics) < 12"), vouched=True)
    found = bisect(node.log, check, on_problem=told.append)
    assert found.step is not None and found.method == BINARY
    assert len(told) == 1 and "is not used" in told[0]


def test_without_snapshots_the_halving_is_a_scan_that_says_why() -> None:
    node = make_node(memory_disk(), story(5))
    found = bisect(node.log, predicate_check(compile_predicate("len(topics) < 3"), vouched=True))
    assert (found.method, found.reason) == (SCAN, "there is no snapshot to search with")
    assert found.step is not None


def test_a_predicate_that_turns_back_is_found_out() -> None:
    node = make_node(memory_disk(), [*story(3), (3, [r.ConfigRecord(2, "orders", "retention.ms", None)])])
    add_snapshot(node, 15)
    check = predicate_check(compile_predicate("config('topic/orders', 'retention.ms') is None"), vouched=True)
    found = bisect(node.log, check)
    assert place(found) == (14, 14)
    broken = predicate_check(compile_predicate("len(topics) != 1 or offset != 15"), vouched=True)
    assert place(bisect(node.log, broken)) == (14, 14)


def test_a_snapshot_that_the_log_contradicts_is_named() -> None:
    disk = memory_disk()
    node = make_node(disk, story(10))
    add_snapshot(node, 45)
    later = read_file(disk, join(node.log.directory, snapshot_name(LogPosition(3, 45))))
    write(disk, join(node.log.directory, snapshot_name(LogPosition(3, 18))), later)
    check = predicate_check(compile_predicate("len(topics) < 8"), vouched=True)
    with pytest.raises(InspectError, match="false at the snapshot that ends at 18"):
        bisect(node.log, check)


def test_the_quorum_is_in_no_snapshot_so_it_is_scanned() -> None:
    node = make_node(memory_disk(), story(3))
    add_snapshot(node, 15)
    found = bisect(node.log, predicate_check(compile_predicate("quorum.leader_id != 3001"), vouched=True))
    assert (found.method, place(found)) == (SCAN, (11, 11))


def test_the_search_stops_where_records_are_missing_and_says_so() -> None:
    node = make_node(memory_disk(), story(10))
    flip(node, 13)
    told: list[str] = []
    check = predicate_check(compile_predicate("len(topics) < 5"))
    found = bisect(node.log, check, on_problem=told.append)
    assert (found.step, found.end_offset) == (None, 13)
    assert any("--past-corruption" in line for line in told)
    assert bisect(node.log, check, past_corruption=True).step is not None


def test_rules_of_steps_and_of_images_are_found_where_they_break() -> None:
    broken: list[Batch] = [*STORY, (2, [r.PartitionChangeRecord(0, ORDERS, isr=(1, 7))])]
    node = make_node(memory_disk(), broken)
    assert place(bisect(node.log, named_check("isr-within-replicas"))) == (15, 15)
    assert place(bisect(node.log, named_check("no-errors"))) == (15, 15)
    assert bisect(node.log, named_check("partition-epoch-grows")).step is None


def test_a_checkpoint_has_no_history() -> None:
    node = make_node(memory_disk())
    add_snapshot(node, 10)
    snapshot = node.log.snapshot(node.log.snapshots()[0])
    with pytest.raises(InspectError, match="is a single state, not a history"):
        bisect(snapshot, named_check("all-led"))


def test_names_of_checks() -> None:
    text = (REPOSITORY / "docs" / "invariants.md").read_text()
    assert all(f"\n- `{name}`: " in text for name in (*IMAGE_RULES, *STEP_RULES))
    assert len({*HEALTH, *IMAGE_RULES, *STEP_RULES}) == len(HEALTH) + 30
    for name in (*HEALTH, *IMAGE_RULES, *STEP_RULES):
        assert named_check(name).name == name
    with pytest.raises(ValueError, match="did you mean all-led"):
        named_check("all-lead")
