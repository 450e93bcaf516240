"""Writes synthetic fleets to disk: node directories as Kafka leaves them, and the truth.

OUT/clusters/NAME/controller-ID/meta.properties
OUT/clusters/NAME/controller-ID/__cluster_metadata-0/...
OUT/truth/fleet.json, OUT/truth/NAME.json
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import shutil
import signal
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from random import Random
from typing import Any, BinaryIO

import numpy as np
from msgspec import structs

from metaquorum.metadata.columnar.encode import PartitionRowsToWrite, encode_records, topic_words
from metaquorum.metadata.features import record_version_for, write_version
from metaquorum.metadata.image.chunk import (
    INDEX,
    LEADER,
    LEADER_EPOCH,
    LISTS,
    N_ISR,
    N_REPLICAS,
    PARTITION_EPOCH,
)
from metaquorum.metadata.records.codec import encode, encode_control
from metaquorum.metadata.records.control import SnapshotFooterRecord, SnapshotHeaderRecord
from metaquorum.metadata.records.types import (
    ConfigRecord,
    FeatureLevelRecord,
    PartitionRecord,
    ProducerIdsRecord,
    TopicRecord,
)
from metaquorum.pipeline.fleet.cluster import LEVEL, BatchLog, FleetCluster
from metaquorum.pipeline.fleet.partitions import NO_BROKER, WIDTH, Rows
from metaquorum.pipeline.fleet.plan import ClusterPlan, FleetPlan, cluster_plans
from metaquorum.pipeline.fleet.script import live, truth
from metaquorum.platforms import interrupts_held
from metaquorum.storage.batches.encode import encode_batch, plain_header, seal_batch
from metaquorum.storage.files.meta_properties import FILE_NAME as META_PROPERTIES
from metaquorum.storage.files.meta_properties import MetaProperties
from metaquorum.storage.files.quorum_state import FILE_NAME as QUORUM_STATE
from metaquorum.storage.files.quorum_state import QuorumState
from metaquorum.storage.files.snapshots import snapshot_name
from metaquorum.storage.log.config import METADATA_DIRECTORY
from metaquorum.storage.log.epochs import EpochTable
from metaquorum.storage.log.segment import segment_name
from metaquorum.storage.types import LogPosition
from metaquorum.storage.uuids import METADATA_TOPIC_ID, random_uuid

CLUSTERS, TRUTH = "clusters", "truth"
LEADER_EPOCHS = "leader-epoch-checkpoint"
_FLIPPED_AT = 70
_ZEROS = 4096
_LAG_BATCHES = 3
"""Number of batches by which each node is behind the node before it."""

Progress = Callable[[dict[str, Any]], None]


def write_fleet(
    plan: FleetPlan, out: Path, *, jobs: int = 1, on_cluster: Progress | None = None
) -> dict[str, Any]:
    """Writes a whole fleet below `out`, which must be empty or absent. Returns its summary (fleet.json). What
    ends it early, such as Ctrl-C or a full disk, leaves nothing of it.

    `jobs` processes share the clusters. `on_cluster` gets each cluster's summary when it is written. Raises
    FileExistsError for a folder that is not empty, OSError from the disk.
    """
    if out.exists() and any(out.iterdir()):
        raise FileExistsError(f"{out} is not empty; give a new directory")
    is_new = not out.exists()
    try:
        return _written(plan, out, jobs, on_cluster)
    except BaseException:
        for made in (out / CLUSTERS, out / TRUTH):
            shutil.rmtree(made, ignore_errors=True)
        if is_new:
            shutil.rmtree(out, ignore_errors=True)
        raise


def _written(plan: FleetPlan, out: Path, jobs: int, on_cluster: Progress | None) -> dict[str, Any]:
    (out / CLUSTERS).mkdir(parents=True)
    (out / TRUTH).mkdir()
    summaries = []
    with contextlib.closing(_each(plan, out, jobs)) as each:  # before anything is removed, no process writes
        for summary in each:
            summaries.append(summary)
            if on_cluster is not None:
                on_cluster(summary)
    summaries.sort(key=lambda one: str(one["name"]))
    fleet = {
        "plan": structs.asdict(plan),
        "clusters": summaries,
        "records": sum(one["records"] for one in summaries),
        "bytes": sum(one["bytes"] for one in summaries),
    }
    _write_json(out / TRUTH / "fleet.json", fleet)
    return fleet


def _each(plan: FleetPlan, out: Path, jobs: int) -> Generator[dict[str, Any], None, None]:
    if jobs < 2 or plan.clusters < 2:
        for cluster in cluster_plans(plan):
            yield write_cluster(cluster, out)
        return
    # Spawned instead of forked: the caller may have threads.
    context = multiprocessing.get_context("spawn")
    workers = min(jobs, plan.clusters)
    # Only this process handles Ctrl-C, and stops the others.
    ignore = (signal.SIGINT, signal.SIG_IGN)
    others = set(multiprocessing.active_children())
    with ProcessPoolExecutor(workers, context, signal.signal, ignore) as pool:
        try:
            with interrupts_held():  # a process takes a moment until it ignores them
                running = [pool.submit(write_cluster, cluster, out) for cluster in cluster_plans(plan)]
            for done in as_completed(running):
                yield done.result()
        except BaseException:
            for worker in set(multiprocessing.active_children()) - others:
                worker.terminate()
            pool.shutdown(cancel_futures=True)  # waits: afterwards no process writes
            raise


def write_cluster(plan: ClusterPlan, out: Path) -> dict[str, Any]:
    """Writes the nodes and the truth of one cluster. Returns a summary."""
    home = out / CLUSTERS / plan.name
    rng = Random(f"files {plan.seed}")
    first = _node(home, plan, plan.controllers[0], rng)
    writer = _LogWriter(first, plan.segment_bytes)
    every = max(1, plan.records // (plan.snapshots + 1))
    next_snapshot = every if plan.snapshots else plan.records + 1
    cluster: FleetCluster | None = None
    for cluster in live(plan):
        writer.write(cluster.log.take())
        if cluster.log.offset >= next_snapshot and cluster.room:
            writer.snapshot(cluster)
            next_snapshot += every
    if cluster is None:
        raise RuntimeError("a cluster wrote nothing")
    writer.close()
    facts = truth(cluster)
    _state_files(first, facts, None)
    for at, controller in enumerate(plan.controllers[1 : plan.nodes], 1):
        _follower(writer, _node(home, plan, controller, rng), facts, at * _LAG_BATCHES)
    facts["snapshots"] = [{"end_offset": one.offset, "epoch": one.epoch} for one in writer.snapshots]
    facts["damage"] = _damage(plan, cluster.log, writer.path, home) if plan.damage else []
    _write_json(out / TRUTH / f"{plan.name}.json", facts)
    size = sum(path.stat().st_size for path in first.glob("*.log"))
    kinds: dict[str, int] = {}
    for incident in facts["incidents"]:
        kinds[incident["kind"]] = kinds.get(incident["kind"], 0) + 1
    return {
        "name": plan.name,
        "cluster_id": plan.cluster_id,
        "records": facts["records"],
        "bytes": size,
        "brokers": len(facts["brokers"]),
        "partitions": facts["final"]["partitions"],
        "incidents": dict(sorted(kinds.items())),
        "damage": plan.damage,
    }


class _LogWriter:
    """Segments of the first node. Keeps the ends of the last batches."""

    def __init__(self, directory: Path, segment_bytes: int) -> None:
        self.directory = directory
        self.segments: list[tuple[int, Path]] = []
        self.snapshots: list[LogPosition] = []
        self.ends: deque[tuple[int, int, int]] = deque(maxlen=5 * _LAG_BATCHES + 1)
        """(segment number, its bytes, end offset) after each of the last batches."""
        self._segment_bytes = segment_bytes
        self._file: BinaryIO | None = None
        self._size = 0

    @property
    def path(self) -> Path:
        return self.segments[-1][1]

    def write(self, batches: list[bytes]) -> None:
        for batch in batches:
            if self._file is None or self._size + len(batch) > self._segment_bytes:
                self._roll(int.from_bytes(batch[:8], "big"))
            file = self._file
            if file is None:
                raise RuntimeError("no segment is open")
            file.write(batch)
            self._size += len(batch)
            last_offset = int.from_bytes(batch[:8], "big") + int.from_bytes(batch[23:27], "big")
            self.ends.append((len(self.segments) - 1, self._size, last_offset + 1))

    def _roll(self, base_offset: int) -> None:
        self.close()
        path = self.directory / segment_name(base_offset)
        self.segments.append((base_offset, path))
        self._file = path.open("wb", buffering=1 << 20)
        self._size = 0

    def snapshot(self, cluster: FleetCluster) -> None:
        """Writes a checkpoint of the state at the log's end."""
        position = LogPosition(cluster.log.epoch, cluster.log.offset)
        with (self.directory / snapshot_name(position)).open("wb") as file:
            file.writelines(checkpoint(cluster))
        self.snapshots.append(position)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def _node(home: Path, plan: ClusterPlan, controller: int, rng: Random) -> Path:
    """Creates a node's directory with its identity. Returns the log directory."""
    log = home / f"controller-{controller}" / METADATA_DIRECTORY
    log.mkdir(parents=True)
    identity = MetaProperties(cluster_id=plan.cluster_id, node_id=controller, directory_id=random_uuid(rng))
    (log.parent / META_PROPERTIES).write_bytes(identity.encode())
    (log / "partition.metadata").write_text(f"version: 0\ntopic_id: {METADATA_TOPIC_ID}")
    return log


def _state_files(directory: Path, facts: dict[str, Any], end_offset: int | None) -> None:
    epochs = [one for one in facts["epochs"] if end_offset is None or one["offset"] < end_offset]
    table = EpochTable(tuple((one["epoch"], one["offset"]) for one in epochs))
    (directory / LEADER_EPOCHS).write_bytes(table.encode())
    state = QuorumState(
        leader_id=epochs[-1]["leader"], epoch=epochs[-1]["epoch"], voters=tuple(facts["controllers"])
    )
    (directory / QUORUM_STATE).write_bytes(state.encode())


def _follower(writer: _LogWriter, directory: Path, facts: dict[str, Any], behind: int) -> None:
    """A node that has the same bytes, except for the last `behind` batches."""
    ends = list(writer.ends)
    segment, size, end_offset = ends[max(0, len(ends) - 1 - behind)]
    for number, (_, path) in enumerate(writer.segments[: segment + 1]):
        copy = directory / path.name
        shutil.copyfile(path, copy)
        if number == segment:
            with copy.open("r+b") as file:
                file.truncate(size)
    for position in writer.snapshots:
        if position.offset <= end_offset:
            shutil.copyfile(writer.directory / snapshot_name(position), directory / snapshot_name(position))
    _state_files(directory, facts, end_offset)


def _damage(plan: ClusterPlan, log: BatchLog, path: Path, home: Path) -> list[dict[str, Any]]:
    """Damages the end of the first node's log, after everything that the truth describes."""
    position, offset = path.stat().st_size, log.offset
    log.now_ms += plan.idle_ms
    log.no_op()
    batch = bytearray(b"".join(log.take()))
    match plan.damage:
        case "torn_batch":
            tail = bytes(batch[: len(batch) // 2])
        case "flipped_byte":
            batch[min(_FLIPPED_AT, len(batch) - 1)] ^= 0x40
            tail = bytes(batch)
        case _:
            tail = bytes(_ZEROS)
    with path.open("ab") as file:
        file.write(tail)
    return [
        {
            "kind": plan.damage,
            "file": path.relative_to(home).as_posix(),
            "position": position,
            "offset": offset,
            "bytes": len(tail),
        }
    ]


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n")


_ROWS = 4096


class _Writer:
    def __init__(self, epoch: int, time_ms: int) -> None:
        self._epoch, self._time_ms, self._offset = epoch, time_ms, 0

    def control(self, record: Any) -> bytes:
        key, value = encode_control(record)
        data = encode_batch(
            base_offset=self._offset,
            leader_epoch=self._epoch,
            timestamp_ms=self._time_ms,
            values=[value],
            keys=[key],
            is_control=True,
        )
        self._offset += 1
        return data

    def batch(self, payload: bytes, count: int) -> bytes:
        header = plain_header(self._offset, self._epoch, self._time_ms, count)
        self._offset += count
        return seal_batch(header, payload)

    def records(self, records: Iterable[Any]) -> Iterator[bytes]:
        values = {place: encode(one, write_version(one, LEVEL)) for place, one in enumerate(records)}
        if values:
            yield self.batch(encode_records(values, _no_rows(), 1), len(values))


def _no_rows() -> PartitionRowsToWrite:
    return PartitionRowsToWrite(
        np.empty(0, dtype=np.int64),
        np.empty((0, 2), dtype=np.uint64),
        np.empty((LISTS + 3 * WIDTH, 0), dtype=np.int32),
        WIDTH,
        np.empty((0, WIDTH, 2), dtype=np.uint64),
    )


def checkpoint(cluster: FleetCluster) -> Iterator[bytes]:
    """The batches of a snapshot of the log's current state."""
    writer = _Writer(cluster.log.epoch, cluster.log.last_ms)
    yield writer.control(SnapshotHeaderRecord(cluster.log.last_ms))
    brokers = [cluster.registration(broker) for broker in cluster.brokers.values()]
    yield from writer.records([FeatureLevelRecord("metadata.version", LEVEL), *cluster.controllers, *brokers])
    rows = cluster.partitions.live()
    rows = rows[np.lexsort((rows, cluster.partitions.columns.topic[rows]))]
    for low in range(0, len(rows), _ROWS):
        yield _partitions(writer, cluster, rows[low : low + _ROWS], None if low == 0 else int(rows[low - 1]))
    yield from writer.records(
        ConfigRecord(kind, name, key, value) for (kind, name, key), value in sorted(cluster.configs.items())
    )
    yield from writer.records(cluster.quotas.values())
    if cluster.next_producer_id:
        holder = next(iter(cluster.brokers.values()))
        yield from writer.records(
            [ProducerIdsRecord(holder.broker_id, holder.epoch, cluster.next_producer_id)]
        )
    yield writer.control(SnapshotFooterRecord())


def _partitions(writer: _Writer, cluster: FleetCluster, rows: Rows, last: int | None) -> bytes:
    """One batch of rows, with each topic's record before its first partition."""
    partitions, columns = cluster.partitions, cluster.partitions.columns
    topics = columns.topic[rows]
    previous = -1 if last is None else int(columns.topic[last])
    starts = np.flatnonzero(topics != np.concatenate([[previous], topics[:-1]]))
    is_start = np.zeros(len(rows), dtype=np.int64)
    is_start[starts] = 1
    places = np.arange(len(rows)) + np.cumsum(is_start)
    values = {}
    for start in starts.tolist():
        number = int(topics[start])
        record = TopicRecord(partitions.topic_names[number], partitions.topic_ids[number])
        values[int(places[start]) - 1] = encode(record, write_version(record, LEVEL))
    block = np.zeros((LISTS + 3 * WIDTH, len(rows)), dtype=np.int32)
    block[INDEX], block[LEADER] = columns.index[rows], columns.leader[rows]
    block[LEADER_EPOCH], block[PARTITION_EPOCH] = columns.leader_epoch[rows], columns.partition_epoch[rows]
    replicas, isr = columns.replicas[rows], columns.isr[rows]
    block[N_REPLICAS], block[N_ISR] = (replicas != NO_BROKER).sum(axis=1), isr.sum(axis=1)
    block[LISTS : LISTS + WIDTH] = replicas.T
    in_sync_first = np.argsort(~isr, axis=1, kind="stable")
    block[LISTS + 2 * WIDTH :] = np.take_along_axis(replicas, in_sync_first, axis=1).T
    words = np.zeros((max(cluster.brokers) + 1, len(cluster.brokers[1].directories), 2), dtype=np.uint64)
    for broker_id, broker in cluster.brokers.items():
        words[broker_id] = topic_words(list(broker.directories))
    directories = words[np.maximum(replicas, 0), columns.directory[rows]]
    ids = topic_words(partitions.topic_ids)[topics]
    version = record_version_for(PartitionRecord, LEVEL)
    payload = encode_records(values, PartitionRowsToWrite(places, ids, block, WIDTH, directories), version)
    return writer.batch(payload, len(rows) + len(values))
