"""A whole page, as it was recorded: every number, word, cell and path of a chart.

`pytest tests/unit/pipeline/report --rewrite` writes it anew: review the difference like code.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

from metaquorum.pipeline.audit.findings import AuditLimits, findings
from metaquorum.pipeline.audit.gather import TableSource, gather
from metaquorum.pipeline.fleet.files import CLUSTERS, write_fleet
from metaquorum.pipeline.fleet.plan import FleetPlan
from metaquorum.pipeline.report.page import page
from tests.unit.pipeline.local_tables import write_tables

RECORDED = Path(__file__).with_name("page.txt")
# The same in every page.
FIXED = re.compile(r"<(style|script)\b.*?</\1>", re.DOTALL)


def lines_of(text: str, out: Path) -> str:
    """The page with a tag a line."""
    return re.sub(r">\s*<", ">\n<", FIXED.sub("", text).replace(str(out), "OUT")) + "\n"


def test_a_page_says_and_draws_what_was_recorded(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    write_fleet(FleetPlan(clusters=2, records=2000, seed=9, damaged_every=1), tmp_path / "fleet")
    nodes = sorted(path / "controller-3000" for path in (tmp_path / "fleet" / CLUSTERS).iterdir())
    write_tables(nodes, tmp_path / "tables")
    fleet = gather(TableSource(str(tmp_path / "tables")))
    found = findings(fleet, AuditLimits())
    actual = lines_of(page(fleet, found, title="Fleet", tables="tables"), tmp_path)
    if request.config.getoption("--rewrite"):
        RECORDED.write_text(actual)
    recorded = RECORDED.read_text()
    assert actual == recorded, "review with: pytest tests/unit/pipeline/report --rewrite && git diff"
