"""docs/pipeline.md as a program: its SQL blocks, and what Spark prints for them."""

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
_BLOCK = re.compile(r"```sql\n(.*?)```\n(?:\n```text\n(.*?)```\n)?", re.DOTALL)
_ROWS = 100


def views(spark: SparkSession, tables: Path) -> None:
    """Every table as a view of its name."""
    for name, table in read_tables(spark, str(tables)).items():
        table.createOrReplaceTempView(name)


def printed(spark: SparkSession, sql: str) -> str:
    """What `show` prints for a query."""
    shown = io.StringIO()
    with redirect_stdout(shown):
        spark.sql(sql).show(_ROWS, truncate=False)
    return shown.getvalue().rstrip("\n") + "\n"


def blocks(page: str) -> list[tuple[str, str]]:
    """(query, the output that stands below it) of a page."""
    return [(sql, output) for sql, output in _BLOCK.findall(page)]


def rewritten(spark: SparkSession, page: str) -> str:
    """The page with the output of every query below it."""

    def block(match: re.Match[str]) -> str:
        return f"```sql\n{match[1]}```\n\n```text\n{printed(spark, match[1])}```\n"

    return _BLOCK.sub(block, page)
