"""Tasks on Spark's executors, whichever way the session reaches them: values out, values back.

Owns how tasks become a DataFrame and results come back, and what is said when an executor cannot run them.
Uses DataFrames only, so the same code runs in a classic session, under spark-submit and over Spark Connect.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import msgspec

from metaquorum.pipeline.ingest import call
from metaquorum.pipeline.ingest.tasks import installed
from metaquorum.pipeline.ingest.work import ExecutorError, Task, TaskResult
from metaquorum.pipeline.tables import TABLES, spark_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MAX_SLICES = 4_096
INSTALL = (
    "install metaquorum[pipeline] of the driver's release in the Python of every executor (PYSPARK_PYTHON), "
    "or ship an environment with --archives"
)
Watch = Callable[["SparkSession", Callable[[int], None]], AbstractContextManager[None]]
"""Tells how many Spark tasks have ended while its body runs."""


def unwatched(session: SparkSession, told: Callable[[int], None]) -> AbstractContextManager[None]:
    """No progress between the beginning and the end."""
    return nullcontext()


def _send_by_value() -> None:
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(call)  # type: ignore[no-untyped-call]


def table_of(fleet: DataFrame, name: str) -> DataFrame:
    """Rows of a table for the histories (column `history`) of a DataFrame."""
    _send_by_value()
    rows = functools.partial(call.rows, name=name, release=installed(), advice=INSTALL)
    return fleet.select("history").mapInArrow(rows, spark_schema(TABLES[name]))


def run_tasks(
    session: SparkSession,
    tasks: list[Task],
    show: Callable[[int, int], None] = lambda done, of: None,
    watch: Watch = unwatched,
) -> list[TaskResult]:
    """Runs every task on the executors; results in the order of the tasks. Raises ExecutorError where an
    executor lacks this package or a module that it needs, or has another release, and where Spark fails."""
    if not tasks:
        return []
    from pyspark.errors import PySparkException

    _send_by_value()
    encode = msgspec.msgpack.Encoder().encode
    slices = min(len(tasks), MAX_SLICES)
    rows = [(number, number % slices, encode(task)) for number, task in enumerate(tasks)]
    frame = session.createDataFrame(rows, "number INT, slot INT, task BINARY").repartitionById(slices, "slot")
    run = functools.partial(call.call, release=installed())
    count = len(tasks)
    try:
        with watch(session, lambda done: show(min(done, count), count)):
            found = frame.select("number", "task").mapInArrow(run, "number INT, result BINARY").collect()
    except PySparkException as error:
        raise ExecutorError(f"Spark did not run the tasks: {str(error).strip().splitlines()[0]}") from error
    for row in found:
        if row["number"] < 0:
            raise ExecutorError(f"{bytes(row['result']).decode()}: {INSTALL}")
    by_number = {row["number"]: bytes(row["result"]) for row in found}
    decode = msgspec.msgpack.Decoder(TaskResult).decode
    return [decode(by_number[number]) for number in range(count)]
