"""Measures the pipeline on Spark, local[2], in one warm session: the data source to Parquet, and all tables.

Writes synthetic fleets of several sizes with `pipeline.fleet`, and times the real jobs on them: one record
type's table, the wide view, and a whole ingest. Cost must grow in proportion to the records: the slowest rate
of the sizes is compared with the fastest. With --records and --clusters one size of your own, as in the
requirement (50,000,000 records of 200 clusters).
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from tests.bench.figures import Figure

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SIZES = ((100_000, 2), (400_000, 4), (1_600_000, 8))
TYPED_AT_LEAST = 250_000
WIDE_AT_LEAST = 100_000
ALL_TABLES_AT_LEAST = 50_000_000 / 1_200
MEMORY_AT_MOST_GIB = 8.0
ROUNDS = 3


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--records", type=int, help="one size: so many records")
    parser.add_argument("--clusters", type=int, default=8, help="of so many clusters")
    parser.add_argument("--master", default="local[2]")


def run(options: argparse.Namespace) -> list[Figure]:
    from metaquorum.pipeline.session import spark_session

    sizes = ((options.records, options.clusters),) if options.records else SIZES
    session = spark_session(options.master)
    figures: list[Figure] = []
    try:
        with tempfile.TemporaryDirectory(prefix="metaquorum-bench-") as folder:
            rates = [_size(session, Path(folder) / str(records), records, n, figures) for records, n in sizes]
        if len(rates) > 1:
            share = min(rates) / max(rates)
            figures.append(
                Figure(name="slowest_over_fastest_rate_of_sizes", value=share, unit="ratio", at_least=0.5)
            )
    finally:
        session.stop()
    peak_kib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    figures.append(Figure(name="largest_process_gib", value=peak_kib / 2**20, unit="GiB"))
    return figures


def _size(session: SparkSession, folder: Path, records: int, clusters: int, figures: list[Figure]) -> float:
    from metaquorum.pipeline.fleet.files import write_fleet
    from metaquorum.pipeline.fleet.plan import FleetPlan
    from metaquorum.pipeline.ingest.job import ingest
    from metaquorum.pipeline.session import watched

    write_fleet(FleetPlan(clusters=clusters, records=records, seed=7), folder / "fleet", jobs=2)
    logs = str(folder / "fleet" / "clusters")
    tag = f"{records:,}_records"

    def write(target: str, **given: str) -> int:
        frame = session.read.format("metadata_log").options(**given).load(logs)
        frame.write.mode("overwrite").parquet(str(folder / target))
        return session.read.parquet(str(folder / target)).count()

    changes = _best(lambda: write("typed", type="PARTITION_CHANGE_RECORD"))
    wide = _best(lambda: write("wide"))
    used = _Memory()
    started = time.perf_counter()
    report = ingest(session, [logs], folder / "out", show=lambda *_: used.look(), watch=watched)
    spent = time.perf_counter() - started
    rate = report.records / spent
    figures += [
        Figure(name=f"typed_records_per_s_{tag}", value=changes, unit="records/s", at_least=TYPED_AT_LEAST),
        Figure(name=f"wide_records_per_s_{tag}", value=wide, unit="records/s", at_least=WIDE_AT_LEAST),
        Figure(name=f"all_tables_s_{tag}", value=spent, unit="s"),
        Figure(
            name=f"all_tables_records_per_s_{tag}", value=rate, unit="records/s", at_least=ALL_TABLES_AT_LEAST
        ),
        Figure(name=f"memory_gib_{tag}", value=used.most_gib, unit="GiB", at_most=MEMORY_AT_MOST_GIB),
    ]
    return rate


def _best(job: Callable[[], int]) -> float:
    """Records a second of the fastest of some rounds: the first ones warm the session."""
    rates = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        count = job()
        rates.append(count / (time.perf_counter() - started))
    return max(rates)


class _Memory:
    """The most that this process and all below it held at once, looked at now and then."""

    def __init__(self) -> None:
        self.most_gib = 0.0

    def look(self) -> None:
        total = 0
        here = psutil.Process()
        for process in [here, *here.children(recursive=True)]:
            try:
                total += process.memory_full_info().pss
            except psutil.Error:
                continue
        self.most_gib = max(self.most_gib, total / 2**30)
