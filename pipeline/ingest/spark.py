"""Runs tasks on Spark's executors, in any kind of session: values out, values back.

Uses DataFrames only, so the same code runs in a classic session, under spark-submit and over Spark Connect.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import msgspec

from metaquorum.pipeline.ingest import call
from metaquorum.pipeline.ingest.tasks import installed, run_task
from metaquorum.pipeline.ingest.work import (
    ExecutorError,
    RecordsTask,
    ReplayTask,
    SurveyTask,
    Task,
    TaskResult,
)
from metaquorum.pipeline.session import is_executor
from metaquorum.pipeline.stores.address import is_remote
from metaquorum.pipeline.tables import TABLES, spark_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MAX_SLICES = 4_096
SLICE_RECORDS = 40_000
"""A Spark task costs a tenth of a second: small tasks share one, up to this many records."""
TASK_RECORDS = 2_500
"""The fixed cost of a task, mostly its files, in records."""
INSTALL = (
    "install metaquorum[pipeline] of the driver's release in the Python of every executor (PYSPARK_PYTHON), "
    "or ship an environment with --archives"
)
SURVEYED_BYTES = 2_000
"""Bytes of a log that are surveyed in the time in which one record is replayed."""
HERE_RECORDS = 300_000
"""Before a session's first job, tasks of up to this many records run in the driver, if the driver's machine
would run the job anyway."""
Watch = Callable[["SparkSession", Callable[[int], None]], AbstractContextManager[None]]
"""While entered, reports how many Spark tasks have ended."""


def unwatched(session: SparkSession, on_done: Callable[[int], None]) -> AbstractContextManager[None]:
    """Reports no progress."""
    return nullcontext()


def _send_by_value() -> None:
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(call)  # type: ignore[no-untyped-call]


def table_of(fleet: DataFrame, name: str) -> DataFrame:
    """Rows of a table for the histories (column `history`) of a DataFrame."""
    _send_by_value()
    rows = functools.partial(call.rows, name=name, release=installed(), advice=INSTALL)
    return fleet.select("history").mapInArrow(rows, spark_schema(TABLES[name]))


def slots_of(tasks: list[Task]) -> list[int]:
    """The Spark task of each task: small neighbors share one."""
    slots: list[int] = []
    slot, taken = -1, SLICE_RECORDS
    for task in tasks:
        size = _size(task)
        if taken + size > SLICE_RECORDS:
            slot, taken = slot + 1, 0
        taken += size
        slots.append(slot % MAX_SLICES)
    return slots


def _size(task: Task) -> int:
    """The cost of a task, in replayed records."""
    match task:
        case ReplayTask() if not task.spans:
            return TASK_RECORDS + max(0, task.merged.end_offset - task.resume_offset)
        case RecordsTask():
            return TASK_RECORDS + task.records
        case SurveyTask():
            own = SLICE_RECORDS // 4 if is_remote(task.location.path) else TASK_RECORDS
            return own + task.size_bytes // SURVEYED_BYTES
        case _:
            return SLICE_RECORDS


def _run_here(tasks: list[Task], show: Callable[[int, int], None]) -> list[TaskResult]:
    threshold, results = gc.get_threshold(), []
    try:
        for number, task in enumerate(tasks):
            show(number, len(tasks))
            results.append(run_task(task))
    finally:
        gc.set_threshold(*threshold)
    return results


def run_tasks(
    session: SparkSession,
    tasks: list[Task],
    show: Callable[[int, int], None] = lambda done, of: None,
    watch: Watch = unwatched,
) -> list[TaskResult]:
    """Runs every task on the executors, or a few small ones in this process if it is on the only executor.
    Results are in the order of the tasks. Raises ExecutorError if an executor lacks this package or a module
    that it needs, or has another release, and if Spark fails."""
    if not tasks:
        return []
    if is_executor(session) and sum(map(_size, tasks)) <= HERE_RECORDS:
        return _run_here(tasks, show)
    from pyspark.errors import PySparkException

    _send_by_value()
    encode = msgspec.msgpack.Encoder().encode
    slots = slots_of(tasks)
    slices = max(slots) + 1
    rows = [(number, slots[number], encode(task)) for number, task in enumerate(tasks)]
    frame = session.createDataFrame(rows, "number INT, slot INT, task BINARY").repartitionById(slices, "slot")
    run = functools.partial(call.call, release=installed())
    count = len(tasks)
    try:
        with watch(session, lambda done: show(min(done * count // slices, count), count)):
            result_rows = (
                frame.select("number", "task").mapInArrow(run, "number INT, result BINARY").collect()
            )
    except PySparkException as error:
        raise ExecutorError(f"Spark did not run the tasks: {str(error).strip().splitlines()[0]}") from error
    for row in result_rows:
        if row["number"] < 0:
            raise ExecutorError(f"{bytes(row['result']).decode()}: {INSTALL}")
    by_number = {row["number"]: bytes(row["result"]) for row in result_rows}
    decode = msgspec.msgpack.Decoder(TaskResult).decode
    return [decode(by_number[number]) for number in range(count)]
