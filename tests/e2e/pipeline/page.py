"""docs/pipeline.md as a program: its SQL blocks, and what Spark prints for them (page_outputs.txt)."""

from __future__ import annotations

import io
import re
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

from metaquorum.pipeline import read_tables
from tests.conftest import REPOSITORY

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = REPOSITORY / "docs" / "pipeline.md"
OUTPUTS = Path(__file__).parent / "page_outputs.txt"
"""What Spark prints for each query, below a line with the title of its section."""
_SECTION = re.compile(
    r"^### (.*?)\n(?:(?!^#).)*?```sql\n(.*?)```\n(?:\n```text\n(.*?)```\n)?", re.DOTALL | re.MULTILINE
)
_ROWS = 100


def views(spark: SparkSession, tables: Path) -> None:
    """Every table as a view with its name."""
    for name, table in read_tables(spark, str(tables)).items():
        table.createOrReplaceTempView(name)


def printed(spark: SparkSession, sql: str) -> str:
    """What `show` prints for a query."""
    shown = io.StringIO()
    with redirect_stdout(shown):
        spark.sql(sql).show(_ROWS, truncate=False)
    return shown.getvalue().rstrip("\n") + "\n"


def queries(page: str) -> dict[str, str]:
    """The query of each section of a page, by the section's title."""
    return {title: sql for title, sql, _ in _SECTION.findall(page)}


def shown_outputs(page: str) -> dict[str, str]:
    """The outputs in the page itself, by the section's title."""
    return {title: output for title, _, output in _SECTION.findall(page) if output}


def recorded_outputs() -> dict[str, str]:
    return dict(re.findall(r"^# (.*)\n((?:[+|].*\n)+)", OUTPUTS.read_text("utf-8"), re.MULTILINE))


def record(outputs: dict[str, str]) -> None:
    OUTPUTS.write_text("\n".join(f"# {title}\n{output}" for title, output in outputs.items()), "utf-8")
