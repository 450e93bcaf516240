"""What goes to the executors as code, not as a name: an executor without this package can still answer.

Spark sends `call` by value (`pipeline.ingest.spark` asks for that), so it may use nothing of this module but
its arguments, and imports what it needs when it runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def call(batches: Iterator[Any], release: str | None) -> Iterator[Any]:
    """Tasks in, results out (number, bytes). An executor that cannot run them answers with number -1 and why.
    `release` is the driver's."""
    import pyarrow as pa

    def row(number: int, data: bytes) -> Any:
        values = [pa.array([number], pa.int32()), pa.array([data], pa.binary())]
        return pa.RecordBatch.from_arrays(values, names=["number", "result"])

    try:
        from metaquorum.pipeline.ingest.tasks import installed, run_encoded
    except ImportError as error:
        yield row(-1, f"an executor cannot import {error.name or error}".encode())
        return
    here = installed()
    if None not in (here, release) and here != release:
        yield row(-1, f"an executor has metaquorum {here} and the driver {release}".encode())
        return
    for batch in batches:
        tasks = zip(batch.column("number").to_pylist(), batch.column("task").to_pylist(), strict=True)
        for number, task in tasks:
            yield row(number, run_encoded(task))
