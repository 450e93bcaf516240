"""The pipeline's tables of a fleet, written without Spark: each cluster's first node, replayed here.

So that tests of audits and reports need no Java.
"""

from __future__ import annotations

import datetime
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq

from metaquorum.metadata.records.batches import decode_batch
from metaquorum.pipeline.ingest.layout import DATA, Manifest, WrittenFile, begin, load_manifest, publish
from metaquorum.pipeline.intervals.cluster import ClusterReplay
from metaquorum.pipeline.stores.folder import Folder
from metaquorum.pipeline.tables import TABLES, TIME, Table, arrow_schema
from metaquorum.storage.disk.posix import PosixDisk
from metaquorum.storage.files.meta_properties import load_meta_properties
from metaquorum.storage.log.reader import Damage, LogReader

_DAY_MS = 86_400_000


def replay(log: Path, cluster: str) -> tuple[ClusterReplay, list[Damage], dict[str, Any]]:
    """A log fed to ClusterReplay: the replay, the damage, and what the row of `files` says."""
    disk = PosixDisk()
    engine = ClusterReplay(cluster, log_end=1 << 62)
    damage: list[Damage] = []
    last_ms = 0
    for item in LogReader(disk, str(log), tolerant=True):
        if isinstance(item, Damage):
            damage.append(item)
            continue
        last_ms = item.header.max_timestamp_ms
        engine.batch(item, decode_batch(item, tolerant=True))
    size = sum(path.stat().st_size for path in log.glob("*.log"))
    return engine, damage, {"end": engine.end_offset, "bytes": size, "last_ms": last_ms}


def write_tables(clusters: list[Path], out: Path) -> None:
    """`clusters` are node directories, one a cluster."""
    files: list[WrittenFile] = []
    for node in clusters:
        identity = load_meta_properties(PosixDisk(), str(node))
        cluster = str(identity.cluster_id)
        log = node / "__cluster_metadata-0"
        engine, damage, file = replay(log, cluster)
        rows = engine.final_rows()
        for name, more in engine.provisional_rows().items():
            rows[name] = [*rows.get(name, []), *more]
        day = file["last_ms"]
        rows["files"] = [(identity.node_id, str(log), file["bytes"], 0, file["end"], True, None)]
        rows["damage"] = [
            (identity.node_id, one.file, one.position, one.offset, "tail", one.reason) for one in damage
        ]
        for name, listed in rows.items():
            told = [(day_of(TABLES[name], row, day), row) for row in listed]
            files += _write(out, TABLES[name], cluster, told)
        files += _write(out, TABLES["availability"], cluster, engine.availability_rows())
    folder = Folder(str(out))
    publish(folder, begin(folder, load_manifest(folder)), Manifest(files=files))


def day_of(table: Table, row: tuple[Any, ...], otherwise_ms: int) -> int:
    plain = [column.name for column in table.columns if column.name not in ("cluster", "date")]
    for name in ("from_time", "time", "timestamp"):
        if name in plain:
            return int(row[plain.index(name)] or 0) // _DAY_MS * _DAY_MS
    return otherwise_ms // _DAY_MS * _DAY_MS


def _write(
    out: Path, table: Table, cluster: str, rows: list[tuple[int, tuple[Any, ...]]]
) -> Iterator[WrittenFile]:
    schema = arrow_schema(table)
    plain = [column for column in table.columns if column.name not in ("cluster", "date")]
    by_day: dict[int, list[tuple[Any, ...]]] = defaultdict(list)
    for day_ms, row in rows:
        assert len(row) == len(plain), (table.name, row)
        by_day[day_ms].append(row)
    for day_ms, listed in by_day.items():
        arrays = []
        for column, values in zip(plain, zip(*listed, strict=True), strict=True):
            kind = schema.field(column.name).type
            given = (
                [None if value is None else value * 1000 for value in values]
                if column.type == TIME
                else values
            )
            arrays.append(pa.array([list(v) if isinstance(v, tuple) else v for v in given], type=kind))
        date = datetime.datetime.fromtimestamp(day_ms / 1000, tz=datetime.UTC).date()
        path = f"{DATA}/{table.name}/cluster={quote(cluster, safe='')}/date={date}/part-0.parquet"
        (out / path).parent.mkdir(parents=True, exist_ok=True)
        names = [column.name for column in plain]
        pq.write_table(pa.Table.from_arrays(arrays, names=names), out / path)
        yield WrittenFile(
            table=table.name, cluster=cluster, date=str(date), path=path, rows=len(listed), final=True
        )
