"""What a voter that lacks a log or a snapshot, and the leader that sends it, need of the processor.

The leader's directory answers in Kafka's protocol; the voter decodes, checks, writes, syncs and replays it.
There are no sockets, but the parts are those of both. The figures are processor time, which a loaded machine
changes little: a voter is at most as fast as the sum of its parts.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from metaquorum.clients.kafka.raft_messages import api_of, request_body, response_body, response_of
from metaquorum.metadata.replay import Replayer
from metaquorum.metadata.snapshot import load_snapshot
from metaquorum.raft.config import RaftConfig
from metaquorum.raft.effects import (
    AppendLog,
    RespondWithRecords,
    RespondWithSnapshotChunk,
    WriteSnapshotChunk,
)
from metaquorum.raft.messages import (
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    RaftError,
)
from metaquorum.raft.store import ReplicaStore, create_directory
from metaquorum.storage.batches.batch import Batches, iter_batches
from metaquorum.storage.disk.posix import PosixDisk
from metaquorum.wire import codec
from metaquorum.wire.table import API_BY_NAME
from tests.bench.figures import Figure
from tests.bench.seeding import EPOCH, Shape, fill

LOG_MB_PER_S, SNAPSHOT_MB_PER_S = 100, 150
LEADER = 1
VERSIONS = {"Fetch": 17, "FetchSnapshot": 1}


class Parts:
    """Processor time by part."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        began = time.thread_time()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.thread_time() - began


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--partitions", type=int, default=2_000_000)


def run(options: argparse.Namespace) -> Iterator[Figure]:
    shape = Shape(partitions=options.partitions)
    yield Figure(name="partitions", value=shape.partitions, unit="")
    for as_snapshot, fetch in ((False, fetch_log), (True, fetch_snapshot)):
        with tempfile.TemporaryDirectory(prefix="bench-") as directory:
            leader = opened(directory, "leader")
            fill(leader, shape, as_snapshot=as_snapshot)
            parts = Parts()
            size = fetch(leader, opened(directory, "voter"), parts)
        yield from figures_of("snapshot" if as_snapshot else "log", size / 1e6, parts, as_snapshot)


def figures_of(what: str, size_mb: float, parts: Parts, as_snapshot: bool) -> Iterator[Figure]:
    leader_s = sum(used for name, used in parts.seconds.items() if name.startswith("leader"))
    voter_s = sum(parts.seconds.values()) - leader_s
    target = SNAPSHOT_MB_PER_S if as_snapshot else LOG_MB_PER_S
    yield Figure(name=f"{what}", value=size_mb, unit="MB")
    yield Figure(name=f"{what}: a voter, by its parts", value=size_mb / voter_s, unit="MB/s", at_least=target)
    yield Figure(name=f"{what}: the leader", value=size_mb / leader_s, unit="MB/s", at_least=target)
    for name, used in parts.seconds.items():
        yield Figure(name=f"{what}: {name}", value=1000 * used / size_mb, unit="ms/MB")


def opened(directory: str, name: str) -> ReplicaStore:
    path = str(Path(directory) / name)
    create_directory(PosixDisk(), path, cluster_id="c", node_id=1, rng=random.Random(1))
    return ReplicaStore.open(PosixDisk(), path)


def fetch_log(leader: ReplicaStore, voter: ReplicaStore, parts: Parts) -> int:
    engine, end, size = Replayer(), leader.log.end_offset, 0
    most = RaftConfig().fetch_max_bytes
    while (offset := voter.log.end_offset) < end:
        asked = FetchRequest(
            cluster_id="c",
            replica_id=3,
            replica_directory_id=bytes(16),
            epoch=EPOCH,
            fetch_offset=offset,
            last_fetched_epoch=EPOCH,
            high_watermark=offset,
            max_wait_ms=0,
            max_bytes=most,
        )
        blank = FetchResponse(error=RaftError.NONE, epoch=EPOCH, leader_id=LEADER, high_watermark=end)
        with parts.part("leader reads"):
            effect = RespondWithRecords(key=0, response=blank, read_from=offset, read_to=end, max_bytes=most)
            answer: Any = leader.fill_records(effect)
        answer = carried(asked, answer, parts)
        with parts.part("voter checks"):
            batches = Batches.parse(answer.records)
        with parts.part("voter appends"):
            voter.execute(AppendLog(batches=batches))
        with parts.part("voter syncs"):
            ticket = voter.prepare_sync()
            ticket.run()
            voter.sync_completed(ticket)
        with parts.part("voter replays"):
            for batch in iter_batches(batches.data):
                engine.apply_batch(batch)
        size += len(batches.data)
    return size


def fetch_snapshot(leader: ReplicaStore, voter: ReplicaStore, parts: Parts) -> int:
    (snapshot,) = leader.recovered().snapshots[-1:]
    most, position, size = RaftConfig().snapshot_chunk_bytes, 0, 1
    while position < size:
        asked = FetchSnapshotRequest(
            cluster_id="c",
            replica_id=3,
            replica_directory_id=bytes(16),
            epoch=EPOCH,
            snapshot=snapshot,
            position=position,
            max_bytes=most,
        )
        blank = FetchSnapshotResponse(error=RaftError.NONE, epoch=EPOCH, leader_id=LEADER)
        with parts.part("leader reads"):
            effect = RespondWithSnapshotChunk(
                key=0, response=blank, snapshot=snapshot, position=position, max_bytes=most
            )
            answer: Any = leader.fill_snapshot_chunk(effect)
        answer = carried(asked, answer, parts)
        with parts.part("voter writes"):
            voter.execute(WriteSnapshotChunk(snapshot=snapshot, position=position, data=answer.data))
        position, size = position + len(answer.data), answer.size_bytes
    with parts.part("voter loads"):
        path = voter.partial_snapshot(snapshot, size)
        load_snapshot(iter_batches(Path(path).read_bytes(), file=path), position=snapshot)
    return size


def carried(asked: Any, answer: Any, parts: Parts) -> Any:
    """The answer as the voter has it."""
    api = api_of(asked)
    key, version = API_BY_NAME[api].key, VERSIONS[api]
    with parts.part("leader asked"):
        header = codec.RequestHeader(key, version, 1)
        frame = b"".join(codec.encode_request(header, request_body(asked, version)))
        codec.decode_request(frame)
    with parts.part("leader encodes"):
        sent = codec.encode_response(key, version, 1, response_body(answer, version, None))
    frame = b"".join(sent)  # as the socket delivers it
    with parts.part("voter decodes"):
        return response_of(codec.decode_response(key, version, frame).body, version, asked)
