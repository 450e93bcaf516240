"""Reads the pipeline's tables: the Parquet files of the newest version, with pyarrow and without Spark."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from metaquorum.pipeline.ingest.layout import DATA, READ_FROM, LayoutError, OtherFilesError, load_manifest
from metaquorum.pipeline.stores.address import address
from metaquorum.pipeline.stores.folder import Folder
from metaquorum.pipeline.tables import TABLES, TIME, arrow_schema
from metaquorum.storage.disk.interface import join
from metaquorum.storage.errors import StorageError

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.dataset as ds

Times = npt.NDArray[np.int64]

NO_TIME = np.iinfo(np.int64).min
"""Null in an array of times in ms."""

_BATCH_ROWS = 1 << 17


class TablesError(Exception):
    """The folder has no tables, or not the needed one. The text says what to run."""


class TableSource:
    """The tables in one folder, as `metaquorum pipeline ingest` wrote them."""

    def __init__(self, root: Path | str) -> None:
        """Raises TablesError for a folder without tables, PathError for an invalid path."""
        self.root = address(str(root))
        self._folder = Folder(self.root)
        how = "write them with: metaquorum pipeline ingest LOGS --out"
        try:
            manifest = load_manifest(self._folder, oldest=READ_FROM)
        except OtherFilesError as error:
            raise TablesError(f"{error.what}; give the directory of the tables, or {how} TABLES") from error
        except (LayoutError, StorageError) as error:
            raise TablesError(str(error)) from error
        if not manifest.version:
            raise TablesError(f"{self.root} holds no pipeline tables; {how} {shlex.quote(self.root)}")
        self._files: dict[str, list[str]] = {}
        for file in sorted(manifest.files, key=lambda file: file.path):
            self._files.setdefault(file.table, []).append(file.path)
        self.present = tuple(name for name in TABLES if name in self._files)

    def places(self, name: str) -> list[str]:
        """The Parquet files of a table, as paths or addresses."""
        return [self._folder.place(path) for path in self._files.get(name, [])]

    def base(self, name: str) -> str:
        """The folder that holds a table's partition folders."""
        return self._folder.place(f"{DATA}/{name}")

    def dataset(self, name: str) -> ds.Dataset:
        """A table as a pyarrow dataset, with `cluster` and `date` from folder names."""
        import pyarrow as pa
        import pyarrow.dataset as ds

        if name not in self._files:
            return ds.dataset(pa.Table.from_batches([], arrow_schema(TABLES[name])))
        system, root = self._folder.system()
        dataset = ds.dataset(
            [join(root, path) for path in self._files[name]],
            filesystem=system,
            format=ds.ParquetFileFormat(read_options={"dictionary_columns": _low_cardinality(name)}),
            partitioning=ds.HivePartitioning.discover(infer_dictionary=True),
            partition_base_dir=join(root, f"{DATA}/{name}"),
        )
        later = [field for field in arrow_schema(TABLES[name]) if field.name not in dataset.schema.names]
        return dataset.replace_schema(pa.schema([*dataset.schema, *later])) if later else dataset

    def batches(
        self, name: str, columns: Iterable[str], where: Any | None = None
    ) -> Iterator[tuple[str, pa.RecordBatch]]:
        """(cluster, rows) in pieces of bounded size. `where`: a pyarrow filter."""
        if name not in self.present:
            return
        wanted = [column for column in columns if column != "cluster"]
        for batch in self.dataset(name).to_batches(
            columns=[*wanted, "cluster"], filter=where, batch_size=_BATCH_ROWS
        ):
            if not batch.num_rows:
                continue
            yield from pieces_by_cluster(batch)

    def row_counts(self, name: str) -> dict[str, int]:
        """Rows by cluster, from the footers of the files only. Empty for a table without rows."""
        import pyarrow.dataset as ds

        counts: dict[str, int] = {}
        if name in self.present:
            for fragment in self.dataset(name).get_fragments():
                cluster = str(ds.get_partition_keys(fragment.partition_expression)["cluster"])
                counts[cluster] = counts.get(cluster, 0) + fragment.count_rows()
        return counts

    def rows(self, name: str, columns: Iterable[str], where: Any | None = None) -> Iterator[dict[str, Any]]:
        """Rows one by one, times as Unix ms. For tables with few rows per cluster."""
        wanted = tuple(columns)
        times = {column.name for column in TABLES[name].columns if column.type == TIME}
        for cluster, batch in self.batches(name, wanted, where):
            listed: list[Any] = []
            for column in wanted:
                if column == "cluster":
                    listed.append([cluster] * batch.num_rows)
                elif column in times:
                    values = time_column(batch, column).tolist()
                    listed.append([None if value == NO_TIME else value for value in values])
                else:
                    listed.append(batch.column(column).to_pylist())
            for values in zip(*listed, strict=True):
                yield dict(zip(wanted, values, strict=True))

    def time_before(self, cluster: str, date: str, offset: int | None) -> int:
        """The time in ms of that day's last record before an offset (None: of its last one).
        Midnight if there are no records."""
        import pyarrow.compute as pc

        where = (pc.field("cluster") == cluster) & (pc.field("date") == date)
        if offset is not None:
            where &= pc.field("offset") < offset
        latest = NO_TIME
        for _, batch in self.batches("records", ("timestamp",), where):
            latest = max(latest, int(time_column(batch, "timestamp").max()))
        midnight = np.datetime64(date, "ms").astype(np.int64)
        return int(midnight if latest == NO_TIME else latest)


def pieces_by_cluster(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """(cluster, rows) of a batch that is not empty and sorted by cluster."""
    import pyarrow as pa

    clusters = batch.column("cluster")
    if not isinstance(clusters, pa.DictionaryArray):
        clusters = clusters.dictionary_encode()
    codes = clusters.indices.to_numpy(zero_copy_only=False)
    bounds = np.flatnonzero(np.diff(codes)) + 1
    for low, high in zip([0, *bounds.tolist()], [*bounds.tolist(), len(codes)], strict=True):
        yield str(clusters[low].as_py()), batch.slice(low, high - low)


def time_column(batch: pa.RecordBatch, name: str) -> Times:
    """A column of timestamps as Unix ms, NO_TIME for null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    column = batch.column(name).cast(pa.timestamp("us", tz="UTC"), safe=False).cast(pa.int64())
    micros = pc.fill_null(column, NO_TIME).to_numpy(zero_copy_only=False)
    return np.where(micros == NO_TIME, NO_TIME, micros // 1000)


def _low_cardinality(name: str) -> set[str]:
    """Text columns with few values, which are read as dictionary codes."""
    few = {"changed", "topic", "topic_id", "cause", "old_rack", "state", "rule", "severity"}
    return few & set(TABLES[name].column_names)
