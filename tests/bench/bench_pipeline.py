"""Measures the pipeline on Spark, local[2], in one warm session: the data source to Parquet, and all tables.

Writes synthetic fleets of several sizes with `pipeline.fleet`, and times the real jobs on them: one record
type's table, the wide view, and a whole ingest. Cost must be proportional to the number of records: the
slowest rate of the sizes is compared with the fastest. With --records and --clusters, one size of your own,
such as that of the requirement (50,000,000 records of 200 clusters). With --one, a single cluster of that
size on one executor and on two; with --fixed, an ingest of that number of clusters with the minimum number of
records.
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
TYPED_AT_LEAST = 500_000
WIDE_AT_LEAST = 100_000
ALL_TABLES_AT_LEAST = 120_000
MEMORY_AT_MOST_GIB = 4.0
TWO_OVER_ONE = 1.7
FIXED_AT_MOST_S = 20.0
ROUNDS = 3


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--records", type=int, help="one size: this many records")
    parser.add_argument("--clusters", type=int, default=8, help="number of clusters")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument(
        "--one", type=int, help="instead: one cluster of this many records, on 1 and 2 executors"
    )
    parser.add_argument("--fixed", type=int, help="instead: this many of the smallest clusters")


def run(options: argparse.Namespace) -> list[Figure]:
    from metaquorum.pipeline.session import spark_session

    if options.one or options.fixed:
        with tempfile.TemporaryDirectory(prefix="metaquorum-bench-") as folder:
            return _one(Path(folder), options.one) if options.one else _fixed(Path(folder), options)
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


def _one(folder: Path, records: int) -> list[Figure]:
    """One cluster with a snapshot every SPAN_RECORDS, after others that warm up the session."""
    from metaquorum.pipeline.fleet.files import write_fleet
    from metaquorum.pipeline.fleet.plan import FleetPlan
    from metaquorum.pipeline.ingest.spark import HERE_RECORDS
    from metaquorum.pipeline.logs.pieces import SPAN_RECORDS

    snapshots = max(records // SPAN_RECORDS, 2)
    write_fleet(FleetPlan(clusters=1, records=records, seed=7, snapshots=snapshots), folder / "fleet")
    write_fleet(FleetPlan(clusters=2, records=HERE_RECORDS, seed=8), folder / "small")
    spent = {
        n: _timed(f"local[{n}]", [folder / "small", folder / "fleet"], folder / f"out{n}") for n in (1, 2)
    }
    found = [
        Figure(name=f"one_cluster_{records:,}_records_on_{n}_s", value=at, unit="s")
        for n, at in spent.items()
    ]
    share = spent[1] / spent[2]
    return [*found, Figure(name="two_executors_over_one", value=share, unit="ratio", at_least=TWO_OVER_ONE)]


def _fixed(folder: Path, options: argparse.Namespace) -> list[Figure]:
    from metaquorum.pipeline.fleet.files import write_fleet
    from metaquorum.pipeline.fleet.plan import MIN_RECORDS, FleetPlan

    count = options.fixed
    write_fleet(FleetPlan(clusters=count, records=count * MIN_RECORDS, seed=7), folder / "fleet", jobs=2)
    spent = _timed(options.master, [folder / "fleet"], folder / "out")
    return [
        Figure(name=f"all_tables_of_{count}_small_clusters_s", value=spent, unit="s", at_most=FIXED_AT_MOST_S)
    ]


def _timed(master: str, fleets: list[Path], out: Path) -> float:
    """Seconds of the ingest of the last of some fleets, in a session that has ingested the others."""
    from metaquorum.pipeline.ingest.job import ingest
    from metaquorum.pipeline.session import spark_session

    session, spent = spark_session(master, light=True), 0.0  # as the command does
    try:
        for number, fleet in enumerate(fleets):
            started = time.perf_counter()
            ingest(session, [str(fleet / "clusters")], out / str(number))
            spent = time.perf_counter() - started
    finally:
        session.stop()
    return spent


def _best(job: Callable[[], int]) -> float:
    """Records per second of the fastest of several rounds: the first ones warm up the session."""
    rates = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        count = job()
        rates.append(count / (time.perf_counter() - started))
    return max(rates)


class _Memory:
    """The peak memory of this process and all its descendants, sampled at intervals."""

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
