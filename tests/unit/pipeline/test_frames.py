"""Tables straight from a history: the rows that a replay gives, every one with its cluster and day."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

pytest.importorskip("pyarrow")

import pyarrow as pa

from metaquorum.pipeline.audit.gather import TableSource
from metaquorum.pipeline.fleet.files import CLUSTERS, write_fleet
from metaquorum.pipeline.fleet.plan import FleetPlan
from metaquorum.pipeline.ingest.tasks import table_batches
from metaquorum.pipeline.logs.cut import _histories
from metaquorum.pipeline.logs.places import find_logs
from metaquorum.pipeline.stores.disk import StoreDisk
from metaquorum.pipeline.tables import PARTITION_COLUMNS, TABLES, arrow_schema
from tests.unit.pipeline.local_tables import write_tables

OWN = {"records", "files", "damage"}
"""Of these the local tables have other rows, or none."""


@pytest.fixture(name="fleet", scope="module")
def fixture_fleet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("frames")
    write_fleet(FleetPlan(clusters=2, records=2_000, seed=9, damaged_every=0), out / "fleet")
    nodes = sorted(path / "controller-3000" for path in (out / "fleet" / CLUSTERS).iterdir())
    write_tables(nodes, out / "tables")
    return out


def rows_of(fleet: Path, name: str) -> pa.Table:
    places = find_logs(StoreDisk(), [str(fleet / "fleet" / CLUSTERS)], None)
    histories = _histories(places, 1 << 30)
    given = pa.RecordBatch.from_pydict({"history": [msgspec.msgpack.encode(merged) for merged in histories]})
    found = list(table_batches(iter([given]), name))
    return pa.Table.from_batches(found) if found else None


@pytest.mark.parametrize("name", sorted(TABLES.keys() - OWN))
def test_a_table_has_the_rows_of_a_replay(fleet: Path, name: str) -> None:
    found = rows_of(fleet, name)
    plain = [each for each in arrow_schema(TABLES[name]).names if each not in PARTITION_COLUMNS]
    source = TableSource(str(fleet / "tables"))
    expected = list(source.rows(name, ["cluster", *plain])) if source.places(name) else []
    if found is None:
        assert expected == []
        return
    assert found.schema.names == [*plain, *PARTITION_COLUMNS]
    mine = msgspec.json.encode(sorted(map(_in_order, found.drop(["date"]).to_pylist())))
    assert mine == msgspec.json.encode(sorted(map(_in_order, expected)))


def _in_order(row: dict[str, Any]) -> str:
    """A row as text; times as numbers."""
    return repr(sorted((key, _plain(value)) for key, value in row.items()))


def _plain(value: Any) -> Any:
    if isinstance(value, datetime.datetime):
        return round(value.timestamp() * 1000)
    return value


def test_every_record_has_a_row_on_its_day(fleet: Path) -> None:
    found = rows_of(fleet, "records")
    assert found.num_rows == 2_000
    assert len(set(found["cluster"].to_pylist())) == 2
    for row in found.select(["timestamp", "date"]).to_pylist():
        assert row["timestamp"].date() == row["date"]
