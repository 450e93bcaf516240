"""Which batches and records a selection wants, at every bound; and what a segment may hold."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from metaquorum.cli.log.input import partition
from metaquorum.cli.log.input.select import SelectedRecords
from metaquorum.cli.main import main
from metaquorum.storage.batches.batch import encode_batch

BOUNDS = (None, *range(3, 9))
SEGMENT = "00000000000000000000.log"


@pytest.mark.parametrize("what", ["offset", "ms"])
def test_a_batch_is_wanted_where_it_reaches_into_the_range(what: str) -> None:
    header: Any = SimpleNamespace(base_offset=4, last_offset=7, base_timestamp_ms=4, max_timestamp_ms=7)
    for low, high in product(BOUNDS, BOUNDS):
        bounds: dict[str, Any] = {f"from_{what}": low, f"to_{what}": high}
        wanted = (low is None or low <= 7) and (high is None or high >= 4)
        assert SelectedRecords(**bounds).wants_batch(header) is wanted, (low, high)


@pytest.mark.parametrize("what", ["offset", "ms"])
def test_a_record_is_wanted_inside_the_range(what: str) -> None:
    record: Any = SimpleNamespace(offset=5, timestamp_ms=5, record=SimpleNamespace(type_name="A"))
    for low, high in product(BOUNDS, BOUNDS):
        bounds: dict[str, Any] = {f"from_{what}": low, f"to_{what}": high}
        wanted = (low is None or low <= 5) and (high is None or high >= 5)
        assert SelectedRecords(**bounds).wants(record, ()) is wanted, (low, high)
    for shown_below, wanted in ((5, False), (6, True)):
        assert SelectedRecords(to_ms=4, shown_below=shown_below).wants(record, ()) is wanted


@pytest.mark.parametrize(
    ("types", "entities", "wanted"),
    [
        ((), (), True),
        (("A", "B"), (), True),
        (("B",), (), False),
        ((), ("topic/t",), True),
        ((), ("topic/u", "topic/t/1"), True),
        ((), ("topic/u",), False),
        (("A",), ("topic/u",), False),
        (("B",), ("topic/t",), False),
    ],
)
def test_types_and_entities_both_count(
    types: tuple[str, ...], entities: tuple[str, ...], wanted: bool
) -> None:
    record: Any = SimpleNamespace(offset=5, timestamp_ms=5, record=SimpleNamespace(type_name="A"))
    selected = SelectedRecords(types=frozenset(types), entities=entities)
    assert selected.wants(record, ("broker/1", "topic/t/1")) is wanted
    assert selected.is_everything is (not types and not entities)


# ---- a partition's segment


def segment(path: Path, *counts: int) -> list[bytes]:
    """Batches of so many records, from offset 0 on."""
    batches, base = [], 0
    for count in counts:
        values = [b"value %d" % at for at in range(count)]
        batches.append(encode_batch(base_offset=base, leader_epoch=1, timestamp_ms=5, values=values))
        base += count
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"".join(batches))
    return batches


def offsets(path: Path, *options: str) -> tuple[list[int], list[str], int]:
    """The offsets that are shown, what is complained of, and the exit code."""
    result = CliRunner().invoke(main, ["log", "dump", str(path), "--json", *options])
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    listed = [record["offset"] for row in rows for record in row["records"]]
    return (
        listed,
        [line.removeprefix(f"metaquorum: {path}: ") for line in result.stderr.splitlines()],
        (result.exit_code),
    )


@pytest.mark.parametrize("spare", [-1, 0, 1])
def test_the_largest_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spare: int) -> None:
    path = tmp_path / "orders-0" / SEGMENT
    first, second = segment(path, 1, 3)
    monkeypatch.setattr(partition, "MAX_READABLE_BATCH_BYTES", len(second) + spare)
    if spare >= 0:
        assert offsets(path) == ([0, 1, 2, 3], [], 0)
    else:
        problem = f"byte {len(first)}: a batch has {len(second)} bytes; the rest of the file is not shown"
        assert offsets(path) == ([0], [problem], 1)


@pytest.mark.parametrize("size", [0, 48])
def test_a_batch_smaller_than_its_header(tmp_path: Path, size: int) -> None:
    path = tmp_path / "orders-0" / SEGMENT
    first, second = segment(path, 1, 1)
    path.write_bytes(first + second[:8] + size.to_bytes(4, "big") + second[12:])
    problem = f"byte {len(first)}: a batch has {size + 12} bytes; the rest of the file is not shown"
    assert offsets(path) == ([0], [problem], 1)


@pytest.mark.parametrize("missing", [1, 5])
def test_a_torn_batch(tmp_path: Path, missing: int) -> None:
    path = tmp_path / "orders-0" / SEGMENT
    first, second = segment(path, 2, 1)
    path.write_bytes((first + second)[:-missing])
    problem = f"byte {len(first)}: the last batch is torn, {missing} of its bytes are missing"
    assert offsets(path) == ([0, 1], [problem], 1)


def test_a_batch_that_is_passed_over_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "orders-0" / SEGMENT
    first, second, third = segment(path, 2, 2, 1)
    hurt = bytearray(second)
    hurt[-1] ^= 1
    path.write_bytes(first + bytes(hurt) + third)
    assert offsets(path, "--from-offset", "4") == ([4], [], 0)
    shown, problems, code = offsets(path)
    assert (shown, code) == ([0, 1, 4], 1)
    assert problems[0].startswith(f"byte {len(first)}: expected CRC")
    assert all(each.startswith(f"byte {len(first)}: ") for each in problems)


def test_which_files_are_a_partition_s(tmp_path: Path) -> None:
    log = tmp_path / "orders-0"
    segment(log / SEGMENT, 1)
    segment(log / "00000000000000000007.log", 1)
    (log / "notes.log").touch()
    other = tmp_path / "other"
    segment(other / SEGMENT, 1)
    both = [log / SEGMENT, log / "00000000000000000007.log"]
    assert partition.partition_files(str(log), None) == both
    assert partition.partition_files(str(log / SEGMENT), None) == both[:1]
    assert partition.partition_files(str(log / "notes.log"), None) == []
    assert partition.partition_files(str(log / "00000000000000000009.log"), None) == []
    assert partition.partition_files(str(other), None) == []
    assert partition.partition_files(str(other), "t") == [other / SEGMENT]
    assert partition.partition_files(str(other / SEGMENT), "t") == [other / SEGMENT]
