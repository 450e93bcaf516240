"""Reads logs as the pipeline does and prints what it found: `python -m tests.systems.pipeline NODE...`

Without a JVM: what Spark calls on its executors, and the tables, written and read again. One line per kind of
row and table, with a sum of its content: the same on every system.
"""

from __future__ import annotations

import hashlib
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq

import metaquorum.pipeline
from metaquorum.pipeline.source import MetadataLogReader, Options
from tests.unit.pipeline.local_tables import write_tables

KINDS = ("all", "damage", "PARTITION_RECORD")


def rows_of(node: str, kind: str) -> Iterator[str]:
    reader = MetadataLogReader(Options({"path": node, "type": kind}))
    for partition in reader.partitions():
        for batch in reader.read(partition):
            yield from map(repr, batch.to_pylist())


def told(rows: list[str]) -> str:
    return f"{len(rows)} {hashlib.sha256(chr(10).join(rows).encode()).hexdigest()[:16]}"


def main() -> int:
    assert all(callable(getattr(metaquorum.pipeline, each)) for each in metaquorum.pipeline.__all__)
    for node in sys.argv[1:]:
        for kind in KINDS:
            print(node, kind, told(list(rows_of(node, kind))))
        with tempfile.TemporaryDirectory(prefix="pipeline-") as out:
            write_tables([Path(node)], Path(out))
            for file in sorted(Path(out).rglob("*.parquet")):
                rows = pq.ParquetFile(file).read().to_pylist()
                print(file.relative_to(out).as_posix(), told(list(map(repr, rows))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
