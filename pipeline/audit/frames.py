"""Tables that are DataFrames, as a source for audits and reports in a Spark session.

Owns the step from DataFrames to the rows that `gather` reads, and from findings to rows. Does not read files;
`source` does. The driver holds one table at a time, with the requested columns.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from metaquorum.pipeline.audit.findings import AuditFinding
from metaquorum.pipeline.audit.source import TablesError, TableSource, pieces_by_cluster
from metaquorum.pipeline.tables import TABLES

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

FINDING_SCHEMA = (
    "severity STRING, kind STRING, cluster STRING, subject STRING, from_time TIMESTAMP, to_time TIMESTAMP, "
    "`offset` BIGINT, count BIGINT, seconds DOUBLE, text STRING"
)


class FrameSource(TableSource):
    """The tables as DataFrames, by name."""

    def __init__(self, frames: Mapping[str, DataFrame]) -> None:
        """Raises TablesError for names that are not tables."""
        unknown = sorted(set(frames) - set(TABLES))
        if unknown or not frames:
            wrong = unknown[0] if unknown else "nothing"
            raise TablesError(f"{wrong} is not a table; use {', '.join(TABLES)}")
        self._frames = frames
        self.present = tuple(name for name in TABLES if name in frames)

    def batches(
        self, name: str, columns: Iterable[str], where: Any | None = None
    ) -> Iterator[tuple[str, pa.RecordBatch]]:
        if name not in self._frames:
            return
        wanted = [*(column for column in columns if column != "cluster"), "cluster"]
        frame = self._frames[name].orderBy("cluster", "date", *TABLES[name].key)
        table = (frame.select(*wanted) if where is None else frame).toArrow()
        if where is not None:
            table = table.filter(where).select(wanted)
        for batch in table.to_batches():
            yield from pieces_by_cluster(batch)

    def row_counts(self, name: str) -> dict[str, int]:
        if name not in self._frames:
            return {}
        return {
            row["cluster"]: row["count"] for row in self._frames[name].groupBy("cluster").count().collect()
        }

    def time_before(self, cluster: str, date: str, offset: int | None) -> int:
        from pyspark.sql import functions as fn

        frame = self._frames["records"].filter((fn.col("cluster") == cluster) & (fn.col("date") == date))
        if offset is not None:
            frame = frame.filter(fn.col("offset") < offset)
        (row,) = frame.agg(fn.max(fn.unix_millis("timestamp")).alias("latest")).collect()
        midnight = datetime.datetime.fromisoformat(str(date)).replace(tzinfo=datetime.UTC)
        return int(midnight.timestamp() * 1000) if row["latest"] is None else int(row["latest"])


def finding_row(one: AuditFinding) -> tuple[Any, ...]:
    """A finding as a row of FINDING_SCHEMA."""
    times = (_time(one.time_ms), _time(one.end_ms))
    return (
        *(one.severity, one.kind, one.cluster, one.subject, *times),
        *(one.offset, one.count, one.seconds, one.text),
    )


def _time(unix_ms: int | None) -> datetime.datetime | None:
    return None if unix_ms is None else datetime.datetime.fromtimestamp(unix_ms / 1000, tz=datetime.UTC)
