"""Tables of an earlier format: they are read, what came later is empty, and nothing is added to them."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from metaquorum.cli.main import main
from metaquorum.pipeline.audit.gather import TableSource, gather
from metaquorum.pipeline.fleet.files import CLUSTERS, write_fleet
from metaquorum.pipeline.fleet.plan import FleetPlan
from metaquorum.pipeline.ingest.layout import FORMAT, READ_FROM, LayoutError, load_manifest
from metaquorum.pipeline.tables import DERIVED
from tests.unit.pipeline.local_tables import write_tables


@pytest.fixture
def older(tmp_path: Path) -> Path:
    """Tables of an earlier release: without the newest tables, and without a column in some files."""
    write_fleet(FleetPlan(clusters=2, records=2000, seed=4), tmp_path / "fleet")
    nodes = sorted(path / "controller-3000" for path in (tmp_path / "fleet" / CLUSTERS).iterdir())
    write_tables(nodes, out := tmp_path / "tables")
    (manifest,) = (out / "_versions").glob("*.json")
    told = json.loads(manifest.read_text())
    later = {table.name for table in DERIVED}
    told["format"] = READ_FROM
    told["files"] = [file for file in told["files"] if file["table"] not in later]
    manifest.write_text(json.dumps(told))
    first = min(file["path"] for file in told["files"] if file["table"] == "quorum_epochs")
    rest = pq.read_table(out / first, partitioning=None).drop_columns(["skipped_epochs"])
    pq.write_table(rest, out / first)
    return out


def test_an_earlier_format_is_read_and_what_came_later_is_null(older: Path, tmp_path: Path) -> None:
    source = TableSource(older)
    epochs = source.dataset("quorum_epochs").to_table()
    skipped = epochs.column("skipped_epochs")
    assert 0 < skipped.null_count < len(skipped)
    assert source.dataset("incidents").count_rows() == 0
    assert [one.incidents for one in gather(source).clusters] == [[], []]
    page = str(tmp_path / "r.html")
    for words in (["audit", str(older), "--fail-on", "never"], ["report", str(older), "--out", page]):
        done = CliRunner().invoke(main, ["pipeline", *words])
        assert done.exit_code == 0, done.output


def test_nothing_is_added_to_an_earlier_format(older: Path) -> None:
    with pytest.raises(
        LayoutError, match=rf"has format {READ_FROM}, and this release writes {FORMAT}.*ingest"
    ):
        load_manifest(older)
    (manifest,) = (older / "_versions").glob("*.json")
    manifest.write_text(json.dumps({"format": READ_FROM - 1}))
    with pytest.raises(LayoutError, match="ingest again"):
        load_manifest(older, oldest=READ_FROM)
