"""Every bound and default of the pipeline, and every column of its tables, as recorded.

Queries name the columns, and a resumed run reads what an earlier one wrote: who changes one changes a line
here (`pytest tests/unit/pipeline/test_recorded_figures.py --rewrite`), which is reviewed like code.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

from metaquorum.pipeline.tables import TABLES
from tests.unit.test_defaults import SPARK
from tests.unit.test_figures import figures_of

RECORDED = Path(__file__).with_name("figures.txt")
WITHOUT = tuple(f"pipeline/{name.replace('.', '/')}.py" for name in SPARK)


def columns() -> Iterator[str]:
    for name, table in TABLES.items():
        yield f"{name} by {', '.join(table.key)}"
        yield from (f"    {column.name} {column.type}" for column in table.columns)


def test_figures_and_columns_are_what_was_recorded(request: pytest.FixtureRequest) -> None:
    actual = "\n".join([*columns(), "", *figures_of(("pipeline",), WITHOUT), ""])
    if request.config.getoption("--rewrite"):
        RECORDED.write_text(actual, encoding="utf-8")
    assert actual == RECORDED.read_text(encoding="utf-8"), f"review: pytest {Path(__file__).name} --rewrite"
