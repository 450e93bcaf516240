"""Tasks on Spark's executors, whichever way the session reaches them: values out, values back.

Owns how tasks become a DataFrame and results come back, and what is said when an executor cannot run them.
Uses DataFrames only, so the same code runs in a classic session, under spark-submit and over Spark Connect.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import msgspec

from metaquorum.pipeline.ingest.tasks import run_task
from metaquorum.pipeline.ingest.work import ExecutorError, Task, TaskResult

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

MAX_SLICES = 4_096
Watch = Callable[["SparkSession", Callable[[int], None]], AbstractContextManager[None]]
"""Tells how many Spark tasks have ended while its body runs."""
_MISSING = re.compile(r"No module named '([\w.]+)'")
_OTHER_RELEASE = "an executor has metaquorum {}"
_OUTDATED = re.compile(_OTHER_RELEASE.format(r"([\w.]+)"))


def unwatched(session: SparkSession, told: Callable[[int], None]) -> AbstractContextManager[None]:
    """No progress between the beginning and the end."""
    return nullcontext()


def run_tasks(
    session: SparkSession,
    tasks: list[Task],
    show: Callable[[int, int], None] = lambda done, of: None,
    watch: Watch = unwatched,
) -> list[TaskResult]:
    """Runs every task on the executors; results in the order of the tasks. Raises ExecutorError where an
    executor lacks this package, a module that it needs, or has another release of it."""
    if not tasks:
        return []
    from pyspark.errors import PySparkException

    encode = msgspec.msgpack.Encoder().encode
    slices = min(len(tasks), MAX_SLICES)
    rows = [(number, number % slices, encode(task)) for number, task in enumerate(tasks)]
    frame = session.createDataFrame(rows, "number INT, slot INT, task BINARY").repartitionById(slices, "slot")
    run = functools.partial(run_arrow, release=installed())
    count = len(tasks)
    try:
        with watch(session, lambda done: show(min(done, count), count)):
            found = frame.select("number", "task").mapInArrow(run, "number INT, result BINARY").collect()
    except PySparkException as error:
        reason = unable(str(error))
        if reason is None:
            raise
        raise ExecutorError(reason) from None
    by_number = {row["number"]: bytes(row["result"]) for row in found}
    decode = msgspec.msgpack.Decoder(TaskResult).decode
    return [decode(by_number[number]) for number in range(count)]


def installed() -> str | None:
    """The release of this package; None where it runs from a folder or an archive that was not installed."""
    try:
        return version("metaquorum")
    except PackageNotFoundError:
        return None


def run_arrow(batches: Iterator[pa.RecordBatch], release: str | None) -> Iterator[pa.RecordBatch]:
    """What an executor runs: tasks in, results out. `release` is the driver's."""
    import pyarrow as pa

    here = installed()
    if None not in (here, release) and here != release:
        raise ImportError(_OTHER_RELEASE.format(here))
    decode: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(Task)
    encode = msgspec.msgpack.Encoder().encode
    for batch in batches:
        for number, task in zip(
            batch.column("number").to_pylist(), batch.column("task").to_pylist(), strict=True
        ):
            result = encode(run_task(decode.decode(task)))
            yield pa.RecordBatch.from_arrays(
                [pa.array([number], pa.int32()), pa.array([result], pa.binary())], names=["number", "result"]
            )


def unable(text: str) -> str | None:
    """What to do where Spark's error says that an executor cannot import what tasks need; None for any
    other error."""
    missing = _MISSING.search(text)
    if missing is not None:
        return (
            f"an executor cannot import {missing[1]}: install metaquorum[pipeline] in the Python of every "
            "executor (PYSPARK_PYTHON), or ship an environment with --archives"
        )
    other = _OUTDATED.search(text)
    if other is not None:
        return f"{other[0]} and the driver {installed()}: install the same release everywhere"
    return None
