"""The pipeline as functions on DataFrames, in any Spark session.

Every function works in a classic session, under spark-submit, in a notebook and over Spark Connect; the
executors need this package installed. PySpark is imported when a function runs.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from metaquorum.pipeline.audit.findings import AuditFinding
from metaquorum.pipeline.audit.gather import TablesError, TableSource, pieces_by_cluster
from metaquorum.pipeline.tables import PARTITION_COLUMNS, TABLES, quoted, spark_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from metaquorum.pipeline.ingest.plan import IngestReport


FLEET_SCHEMA = (
    "cluster STRING COMMENT 'name of the cluster in the tables', "
    "logs INT COMMENT 'logs that hold a part of its history', "
    "records BIGINT COMMENT 'records of the history that was chosen', "
    "start_offset BIGINT COMMENT 'first offset of the history', "
    "end_offset BIGINT COMMENT 'offset after its last record', "
    "last_epoch INT COMMENT 'leader epoch of the last record', "
    "history BINARY COMMENT 'for make_table: which log is read from where to where'"
)


def read_logs(session: SparkSession, paths: str | Iterable[str], **options: str) -> DataFrame:
    """Every record of the logs below `paths`. `options` are those of the source `metadata_log` (see
    docs/pipeline-source.md). Raises AnalysisException for a wrong option or path, SessionError."""
    from metaquorum.pipeline.session import register

    register(session)
    reader = session.read.format("metadata_log").options(**options)
    return reader.load([paths] if isinstance(paths, str) else list(paths))


def read_fleet(session: SparkSession, paths: str | Iterable[str], *, cluster: str | None = None) -> DataFrame:
    """One row per cluster of the logs below `paths` (FLEET_SCHEMA); filter it to choose clusters. `cluster`
    names the cluster of all logs. Raises NoLogsError, PathError, ExecutorError, StorageError."""
    import msgspec

    from metaquorum.pipeline.ingest.job import survey_fleet

    histories = survey_fleet(session, [paths] if isinstance(paths, str) else list(paths), cluster)
    rows = [
        (
            *(merged.cluster, len(merged.logs), sum(run.end - run.start for run in merged.runs())),
            *(merged.start_offset, merged.end_offset, merged.last_epoch, msgspec.msgpack.encode(merged)),
        )
        for merged in histories
    ]
    return session.createDataFrame(rows, FLEET_SCHEMA)


def make_table(fleet: DataFrame, name: str) -> DataFrame:
    """A table of the clusters in `fleet` (see `read_fleet`), computed from their logs and not written
    anywhere. Raises KeyError for a table that does not exist (`metaquorum.pipeline.TABLES`)."""
    from metaquorum.pipeline.ingest.spark import table_of

    return table_of(fleet, name)


def write_tables(
    session: SparkSession, paths: str | Iterable[str], out: str, *, cluster: str | None = None, **hooks: Any
) -> IngestReport:
    """Updates the tables in `out` from the logs below `paths`, all of them or none, as `metaquorum pipeline
    ingest` does. `hooks`: `show` and `say` of `pipeline.ingest.job.ingest`. Raises NoLogsError, LayoutError,
    PathError, ExecutorError, StorageError."""
    from metaquorum.pipeline.ingest.job import ingest

    return ingest(session, [paths] if isinstance(paths, str) else list(paths), out, cluster=cluster, **hooks)


def read_tables(session: SparkSession, out: str) -> dict[str, DataFrame]:
    """Every table of the newest version in `out`, with comments on the columns. Spark reads the files, so its
    session needs the classes of the store (hadoop-aws for s3). Raises TablesError, PathError."""
    source = TableSource(out)
    return {name: _table(session, source.places(name), name, source.base(name)) for name in TABLES}


def _table(session: SparkSession, places: list[str], name: str, base: str) -> DataFrame:
    columns = spark_schema(TABLES[name])
    if not places:
        return session.createDataFrame([], columns)
    frame = session.read.schema(columns).option("basePath", base).parquet(*places)
    for column in TABLES[name].columns:
        if column.name in PARTITION_COLUMNS:  # Spark keeps no comments on partition columns
            frame = frame.withMetadata(column.name, {"comment": column.meaning})
    return frame


def register_tables(session: SparkSession, out: str) -> None:
    """Registers the tables of the newest version in `out` as temporary views, for SQL."""
    for name, table in read_tables(session, out).items():
        table.createOrReplaceTempView(name)


def save_tables(tables: Mapping[str, DataFrame], schema: str, *, using: str = "parquet") -> None:
    """Copies tables into a schema (database) of the session's catalog, with comments on tables and
    columns, and replaces tables of the same names. `using`: parquet, or another format of the session,
    such as delta or iceberg."""
    for name, frame in tables.items():
        writer = frame.write.format(using).mode("overwrite").partitionBy(*PARTITION_COLUMNS)
        writer.saveAsTable(f"{schema}.{name}")
        frame.sparkSession.sql(f"COMMENT ON TABLE {schema}.{name} IS '{quoted(TABLES[name].meaning)}'")


def table_files(out: str, name: str) -> list[str]:
    """The Parquet files of a table in its newest version, as paths or addresses, for other readers such as
    DuckDB or pandas. `cluster` and `date` are in the names of their folders."""
    return TableSource(out).places(name)


def audit_tables(tables: Mapping[str, DataFrame], **limits: int) -> DataFrame:
    """The findings of `metaquorum pipeline audit` about tables, worst first. `limits`: fields of
    `pipeline.audit.findings.AuditLimits`."""
    from metaquorum.pipeline.audit.findings import AuditLimits, findings
    from metaquorum.pipeline.audit.gather import gather

    found = findings(gather(FrameSource(tables)), AuditLimits(**limits))
    return _session(tables).createDataFrame([finding_row(one) for one in found], FINDING_SCHEMA)


def render_report(
    tables: Mapping[str, DataFrame], *, title: str = "Metadata quorum report", previous: str | None = None
) -> str:
    """The page of `metaquorum pipeline report` about tables, as HTML. With the HTML of a `previous` page, it
    shows what changed since then."""
    from metaquorum.pipeline.audit.findings import AuditLimits, findings
    from metaquorum.pipeline.audit.gather import gather
    from metaquorum.pipeline.report.page import page

    fleet = gather(FrameSource(tables))
    return page(fleet, findings(fleet, AuditLimits()), title=title, tables="DataFrames", previous=previous)


def _session(tables: Mapping[str, DataFrame]) -> SparkSession:
    return next(iter(tables.values())).sparkSession


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


def finding_row(finding: AuditFinding) -> tuple[Any, ...]:
    """A finding as a row of FINDING_SCHEMA."""
    times = (_time(finding.time_ms), _time(finding.end_ms))
    return (
        *(finding.severity, finding.kind, finding.cluster, finding.subject, *times),
        *(finding.offset, finding.count, finding.seconds, finding.text),
    )


def _time(unix_ms: int | None) -> datetime.datetime | None:
    return None if unix_ms is None else datetime.datetime.fromtimestamp(unix_ms / 1000, tz=datetime.UTC)
