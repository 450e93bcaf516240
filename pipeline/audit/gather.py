"""Gathers the facts about every cluster of a fleet, in one pass over each table.

Judges nothing and knows no limits of findings. Memory grows with brokers, sections of trouble, failovers and
buckets, and must not grow with rows.
"""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from metaquorum.metadata.settings.keys import MAX_INT, whole_number
from metaquorum.pipeline.audit.facts import (
    BUCKETS,
    MAX_ASKED,
    MAX_TROUBLED,
    BrokerPeriod,
    ClusterFacts,
    Fleet,
    Floats,
    TimeSpan,
)
from metaquorum.pipeline.ingest.layout import DATA, READ_FROM, LayoutError, OtherFilesError, load_manifest
from metaquorum.pipeline.stores.address import address
from metaquorum.pipeline.stores.folder import Folder
from metaquorum.pipeline.tables import OFF, TABLES, TIME, UNOBSERVED, arrow_schema
from metaquorum.storage.disk.interface import join, parent_of
from metaquorum.storage.errors import StorageError

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.dataset as ds

# Reads the pipeline's tables: the Parquet files of the newest version, with pyarrow and without Spark.

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


MIN_ISR = "min.insync.replicas"


def gather(source: TableSource) -> Fleet:
    """The facts of all tables. Raises OSError and pyarrow's errors for files that cannot be read."""
    clusters: dict[str, ClusterFacts] = {}

    def facts(name: str) -> ClusterFacts:
        return clusters.setdefault(name, ClusterFacts(name))

    _small_tables(source, facts)
    for cluster in clusters.values():
        _span(cluster)
    ordered = sorted(clusters.values(), key=lambda at: at.cluster)
    known = [one for one in ordered if one.end_ms]
    start = min((one.start_ms for one in known), default=0)
    end = max((one.end_ms for one in known), default=0)
    fleet = Fleet(ordered, start, end)
    _partitions(source, fleet)
    _failovers(source, clusters)
    needed = ("quorum_epochs", "broker_sessions", "partition_states", "availability")
    fleet.missing = tuple(name for name in needed if name not in source.present)
    return fleet


def _small_tables(source: TableSource, facts: Any) -> None:
    counts = source.row_counts("records")
    nodes: dict[str, set[object]] = defaultdict(set)
    for row in source.rows("files", ("cluster", "node_id", "file", "end_offset")):
        cluster_facts = facts(row["cluster"])
        node_id = row["node_id"]
        nodes[row["cluster"]].add(parent_of(row["file"]) if node_id is None else node_id)
        cluster_facts.nodes = len(nodes[row["cluster"]])
        # Without the table of records (it may be stored elsewhere), the end of the log is the best estimate.
        cluster_facts.records = (
            counts.get(row["cluster"], 0) if counts else max(cluster_facts.records, row["end_offset"] or 0)
        )
    epochs = ("cluster", "epoch", "leader_id", "from_offset", "from_time", "to_time", "skipped_epochs")
    for row in source.rows("quorum_epochs", epochs):
        facts(row["cluster"]).elections.append(row)
    sessions = ("cluster", "broker_id", "rack", "state", "from_time", "to_time", "from_offset", "began_by")
    for row in source.rows("broker_sessions", sessions):
        cluster_facts = facts(row["cluster"])
        session = BrokerPeriod(
            broker=row["broker_id"],
            state=row["state"],
            from_ms=row["from_time"] or 0,
            to_ms=row["to_time"],
            from_offset=row["from_offset"],
            began_by=row["began_by"],
        )
        cluster_facts.sessions[row["broker_id"]].append(session)
        cluster_facts.racks[row["broker_id"]] = row["rack"]
    for row in source.rows("topics", ("cluster", "partitions", "to_offset")):
        if row["to_offset"] is None:
            cluster_facts = facts(row["cluster"])
            cluster_facts.topics += 1
            cluster_facts.partitions += row["partitions"] or 0
    _incidents(source, facts)
    _voters(source, facts)
    _asked(source, facts)
    _coverage(source, facts)
    _availability(source, facts)
    _violations(source, facts)
    damage = ("cluster", "date", "node_id", "file", "position", "offset", "kind", "reason")
    file_times: dict[tuple[str, str, str], int | None] = {}
    for row in source.rows("damage", damage):
        # A row has the day of the record before, but not its time: look it up once per file.
        file_key = (row["cluster"], str(row["date"]), row["file"])
        if file_key not in file_times:
            is_timed = file_key[1] > "1970-01-01"  # the day of rows without a time
            file_times[file_key] = source.time_before(*file_key[:2], row["offset"]) if is_timed else None
        facts(row["cluster"]).damage.append({**row, "time": file_times[file_key]})
    events = ("cluster", "time", "offset", "broker_id", "directory_id", "event", "replicas")
    for row in source.rows("log_dir_events", events):
        cluster_facts = facts(row["cluster"])
        if row["event"] == "offline":
            cluster_facts.directories_lost.append(row)
        elif row["event"] == "online":
            cluster_facts.directories_found.append(row)


def _incidents(source: TableSource, facts: Any) -> None:
    columns = (
        *("cluster", "what", "who", "cause", "partitions", "leaderless", "leaderless_ms"),
        *("from_offset", "from_time", "to_time"),
    )
    rows = sorted(source.rows("incidents", columns), key=lambda row: (row["from_offset"], row["who"]))
    for row in rows:
        facts(row["cluster"]).incidents.append(row)


def _voters(source: TableSource, facts: Any) -> None:
    columns = ("cluster", "voters", "kraft_version", "changed", "epoch", "from_offset", "from_time")
    for row in sorted(source.rows("voter_sets", columns), key=lambda row: row["from_offset"]):
        facts(row["cluster"]).voters.append(row)


def _asked(source: TableSource, facts: Any) -> None:
    columns = ("cluster", "offset", "time", "request", "rule", "principal", "address", "entities")
    for row in source.rows("audit_trail", columns):
        cluster_facts = facts(row["cluster"])
        what = ": ".join(filter(None, (row["request"], row["rule"])))
        key = (row["principal"] or "the controller itself", what)
        if key not in cluster_facts.asked and len(cluster_facts.asked) >= MAX_ASKED:
            key = ("others", "other requests")
        known = cluster_facts.asked.get(key)
        times = 1 + (known["times"] if known is not None else 0)
        last = row if known is None or known["offset"] < row["offset"] else known
        cluster_facts.asked[key] = {**last, "times": times}


def _coverage(source: TableSource, facts: Any) -> None:
    ends: dict[str, int] = {}
    rows = list(source.rows("coverage", ("cluster", "state", "from_time", "to_time", "to_offset")))
    for row in rows:
        ends[row["cluster"]] = max(ends.get(row["cluster"], 0), row["to_offset"])
    for row in rows:
        if row["state"] in (UNOBSERVED, OFF) and row["from_time"] is not None and row["to_time"] is not None:
            one = facts(row["cluster"])
            is_open = row["state"] == OFF and row["to_offset"] == ends[row["cluster"]]
            span = TimeSpan(row["from_time"], row["to_time"], row["to_offset"], is_open)
            (one.silences if row["state"] == UNOBSERVED else one.offs).append(span)


def _availability(source: TableSource, facts: Any) -> None:
    numbers = (
        *("observed_seconds", "unobserved_seconds", "off_seconds"),
        *("partition_seconds", "leaderless_seconds", "under_min_isr_seconds"),
        *("leader_changes", "unclean_elections", "isr_shrinks", "isr_expands", "fences", "fence_storms"),
        *("failovers", "failovers_open"),
    )
    for row in source.rows("availability", ("cluster", "scope", *numbers)):
        if row["scope"] == "cluster":
            sums = facts(row["cluster"]).sums
            for name in numbers:
                sums[name] += row[name] or 0


def _violations(source: TableSource, facts: Any) -> None:
    columns = (
        *("cluster", "rule", "severity", "where", "found"),
        *("from_offset", "from_time", "to_offset", "to_time"),
    )
    for row in source.rows("violations", columns):
        grouped = facts(row["cluster"]).violations
        key = (row["severity"], row["rule"])
        counted = grouped.get(key)
        if counted is None:
            grouped[key] = {**row, "count": 1, "open": int(row["to_offset"] is None)}
            continue
        counted["count"] += 1
        counted["open"] += row["to_offset"] is None
        counted["to_time"] = max(counted["to_time"] or 0, row["to_time"] or 0) or None
        if row["from_offset"] < counted["from_offset"]:
            counted.update({name: row[name] for name in ("where", "found", "from_offset", "from_time")})


def _span(cluster: ClusterFacts) -> None:
    """Sorts the facts, and finds the start and end of the log."""
    for listed in cluster.sessions.values():
        listed.sort(key=lambda at: at.from_offset)
    cluster.elections.sort(key=lambda row: row["from_offset"])
    cluster.directories_lost.sort(key=lambda row: row["offset"])
    cluster.directories_found.sort(key=lambda row: row["offset"])
    moments = [row[name] for row in cluster.elections for name in ("from_time", "to_time") if row[name]]
    for listed in cluster.sessions.values():
        moments += [at for session in listed for at in (session.from_ms, session.to_ms) if at]
    if not moments:
        return
    cluster.start_ms = min(moments)
    spans = ("observed_seconds", "unobserved_seconds", "off_seconds")
    seen_ms = sum(round(cluster.sums[name] * 1000) for name in spans)
    cluster.end_ms = max(cluster.start_ms + seen_ms, *moments) if seen_ms else max(moments)


# -- partitions ----------------------------------------------------------------------------------------


def _min_isr(source: TableSource) -> dict[str, dict[str, list[tuple[int, int | None, int]]]]:
    """cluster -> topic ("" for the brokers' default) -> (from offset, to offset, value)."""
    min_isr: dict[str, dict[str, list[tuple[int, int | None, int]]]] = defaultdict(lambda: defaultdict(list))
    columns = ("cluster", "resource_type", "resource", "name", "value", "from_offset", "to_offset")
    for row in source.rows("configs", columns):
        value = whole_number(str(row["value"]), MAX_INT)
        if row["name"] != MIN_ISR or value is None:
            continue
        is_default = row["resource_type"] == "broker" and row["resource"] in ("", "<default>")
        if row["resource_type"] == "topic" or is_default:
            topic = "" if is_default else row["resource"]
            min_isr[row["cluster"]][topic].append((row["from_offset"], row["to_offset"], value))
    return min_isr


def _value_at(listed: Iterable[tuple[int, int | None, int]], offset: int) -> int | None:
    for low, high, value in listed:
        if low <= offset and (high is None or offset < high):
            return value
    return None


def _partitions(source: TableSource, fleet: Fleet) -> None:
    import pyarrow.compute as pc

    numbers = {one.cluster: at for at, one in enumerate(fleet.clusters)}
    min_isr = _min_isr(source)
    highest = max(
        (value for topics in min_isr.values() for at in topics.values() for *_, value in at), default=1
    )
    for cluster, batch in source.batches("partition_states", ("from_time", "changed")):
        number = numbers[cluster]
        buckets = _bucket(fleet, time_column(batch, "from_time"))
        changed = pc.cast(batch.column("changed"), "string")
        for name, into in (("leader", fleet.leader_changes), ("isr", fleet.isr_changes)):
            hit = pc.fill_null(pc.match_substring_regex(changed, f"(^|,){name}(,|$)"), False)
            mask = hit.to_numpy(zero_copy_only=False) & (buckets >= 0)
            into[number] += np.bincount(buckets[mask], minlength=BUCKETS)
    few = pc.list_value_length(pc.field("isr")) < highest
    where = (pc.field("leader") < 0) | pc.field("unclean") | few
    columns = (
        "topic",
        "partition",
        "leader",
        "isr",
        "replicas",
        "unclean",
        "from_offset",
        "from_time",
        "to_time",
    )
    for row in source.rows("partition_states", ("cluster", "topic_id", *columns), where):
        _troubled(fleet, numbers[row["cluster"]], row, min_isr[row["cluster"]])


def _bucket(fleet: Fleet, times: Times) -> npt.NDArray[np.int64]:
    """The bucket of each time; -1 for null."""
    found = ((times - fleet.start_ms) / fleet.bucket_ms).astype(np.int64)
    return np.where(times == NO_TIME, -1, np.clip(found, 0, BUCKETS - 1))


def _troubled(fleet: Fleet, number: int, row: dict[str, Any], configs: dict[str, Any]) -> None:
    cluster = fleet.clusters[number]
    offset = row["from_offset"]
    own = _value_at(configs.get(row["topic"], ()), offset)
    needed = own if own is not None else (_value_at(configs.get("", ()), offset) or 1)
    leaderless, short = row["leader"] < 0, len(row["isr"]) < min(needed, len(row["replicas"]))
    if not (leaderless or short or row["unclean"]) or row["from_time"] is None:
        return
    key = (row["topic"], row["topic_id"], row["partition"])
    if key not in cluster.trouble and len(cluster.trouble) >= MAX_TROUBLED:
        fleet.troubled_left_out += 1
        return
    trouble = cluster.trouble[key]
    end = row["to_time"] if row["to_time"] is not None else max(cluster.end_ms, row["from_time"])
    trouble.unclean += row["unclean"]
    if row["unclean"]:
        cluster.unclean.add(key, row["from_time"], row["from_time"], offset)
    is_open = row["to_time"] is None and not cluster.ends_off
    trouble.leaderless_open |= leaderless and is_open
    judged = list(cluster.judged(row["from_time"], end))
    lasted = sum(stop - start for start, stop in judged)
    for start, stop in judged:
        if leaderless:
            _spread(fleet, fleet.leaderless[number], start, stop)
        if short:
            _spread(fleet, fleet.under_min_isr[number], start, stop)
    trouble.leaderless_ms += lasted if leaderless else 0
    if leaderless and lasted > trouble.longest_ms:
        trouble.longest_ms, trouble.longest_from_ms = lasted, judged[0][0]
        trouble.longest_to_ms = None if is_open else judged[-1][1]
    trouble.under_min_isr_ms += lasted if short else 0
    if judged and (lasted or (leaderless and is_open)) and (leaderless or short):
        into = cluster.leaderless if leaderless else cluster.under_min_isr
        into.add(key, judged[0][0], judged[-1][1], offset, lasted_ms=lasted, is_open=is_open)


def _spread(fleet: Fleet, into: Floats, start_ms: int, end_ms: int) -> None:
    """Adds a span to the buckets, each with its share."""
    width = fleet.bucket_ms
    low, high = (start_ms - fleet.start_ms) / width, (end_ms - fleet.start_ms) / width
    first, last = int(np.clip(low, 0, BUCKETS - 1)), int(np.clip(high, 0, BUCKETS - 1))
    if first == last:
        into[first] += high - low
        return
    into[first] += first + 1 - low
    into[first + 1 : last] += 1
    into[last] += high - last


# -- failovers -----------------------------------------------------------------------------------------


def _failovers(source: TableSource, clusters: dict[str, ClusterFacts]) -> None:
    import pyarrow.compute as pc

    columns = ("cluster", "topic", "topic_id", "partition", "duration_ms", "from_offset", "from_time")
    for row in source.rows("failovers", columns, pc.field("duration_ms") > 0):
        start = row["from_time"]
        if start is not None:
            key = (row["topic"], row["topic_id"], row["partition"])
            clusters[row["cluster"]].slow.add(key, start, start + row["duration_ms"], row["from_offset"])
    for cluster, batch in source.batches("failovers", ("duration_ms", "cause", "to_offset")):
        cluster_facts = clusters[cluster]
        ended = pc.drop_null(batch.column("duration_ms"))
        cluster_facts.failover_ms.append(ended.to_numpy(zero_copy_only=False).astype(np.int64))
        is_open = batch.column("to_offset").null_count
        cluster_facts.failovers_open += is_open
        cluster_facts.failovers_lost += batch.column("duration_ms").null_count - is_open
        for cause in pc.value_counts(pc.cast(batch.column("cause"), "string")).to_pylist():
            cluster_facts.failover_causes[str(cause["values"])] += cause["counts"]
