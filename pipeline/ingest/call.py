"""Functions that Spark sends to executors by value, so that one without this package can still report that.

Must not use anything but arguments and other functions of this module, and must import inside functions:
Spark pickles the module (`spark` asks for that).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def problem(release: str | None) -> str | None:
    """Why this executor cannot run tasks of a driver with this `release`; None: it can."""
    try:
        from metaquorum.pipeline.ingest.tasks import installed, table_batches
    except ImportError as error:
        return f"an executor cannot import {error.name or error}"
    del table_batches
    here = installed()
    if None not in (here, release) and here != release:
        return f"an executor has metaquorum {here} and the driver {release}"
    return None


def rows(batches: Iterator[Any], name: str, release: str | None, advice: str) -> Iterator[Any]:
    """Rows of the table `name` for histories. Raises RuntimeError with one line if this executor cannot."""
    import os

    said = problem(release)
    if said is not None:
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise RuntimeError(f"{said}: {advice}")
    from metaquorum.pipeline.ingest.tasks import table_batches

    yield from table_batches(batches, name)


def call(batches: Iterator[Any], release: str | None) -> Iterator[Any]:
    """Runs tasks, returns results as (number, bytes). An executor that cannot run them returns number -1 and
    the reason. `release`: the driver's."""
    import pyarrow as pa

    def row(number: int, data: bytes) -> Any:
        values = [pa.array([number], pa.int32()), pa.array([data], pa.binary())]
        return pa.RecordBatch.from_arrays(values, names=["number", "result"])

    said = problem(release)
    if said is not None:
        yield row(-1, said.encode())
        return
    from metaquorum.pipeline.ingest.tasks import run_encoded

    for batch in batches:
        tasks = zip(batch.column("number").to_pylist(), batch.column("task").to_pylist(), strict=True)
        for number, task in tasks:
            yield row(number, run_encoded(task))
