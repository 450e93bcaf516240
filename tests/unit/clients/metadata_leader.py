"""A quorum that answers observers by Kafka's rules (KafkaRaftClient of 3.7), or by ours: three nodes, their
one log, and what happens to it."""

from __future__ import annotations

from random import Random
from typing import Any

from metaquorum.clients.kafka.observer import AskNode, LocateQuorum, NothingHeard, QuorumNodes
from metaquorum.raft.messages import (
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    RaftError,
)
from metaquorum.raft.voters import Endpoint
from metaquorum.storage.batches.batch import encode_batch
from metaquorum.storage.files.snapshots import SnapshotChunk
from metaquorum.storage.types import LogPosition

CLUSTER = "d2lyZS1jYXB0dXJlLTM3MA"
ADDRESSES = {node: ("127.0.0.1", 9000 + node) for node in (1, 2, 3)}


class MetadataLeader:
    """`kafkas`: answers like Apache Kafka; otherwise like a controller of metaquorum. `names`: whether its
    nodes name the addresses of controllers."""

    def __init__(self, rng: Random, *, kafkas: bool = True, names: bool = True) -> None:
        self.rng = rng
        self.kafkas = kafkas
        self.names = names
        self.epoch = 1
        self.leader = 1
        self.log: list[tuple[LogPosition, int, bytes]] = []
        """Of each batch: where it ends, where it begins, its bytes."""
        self.log_start = LogPosition(0, 0)
        self.high_watermark = -1
        self.snapshots: set[LogPosition] = set()
        self.down: set[int] = set()
        self.asked: list[Any] = []
        self.append(1)
        self.commit()

    # --- what happens

    @property
    def end(self) -> LogPosition:
        return self.log[-1][0] if self.log else self.log_start

    def append(self, records: int) -> None:
        base = self.end.offset
        values = [b"%d:%d" % (self.epoch, base + at) * self.rng.randrange(1, 30) for at in range(records)]
        data = encode_batch(base_offset=base, leader_epoch=self.epoch, timestamp_ms=base, values=values)
        self.log.append((LogPosition(self.epoch, base + records), base, data))

    def commit(self) -> None:
        self.high_watermark = self.end.offset

    def elect(self) -> None:
        """Another node leads, and loses some of what was not committed."""
        self.leader = self.rng.choice([node for node in ADDRESSES if node != self.leader])
        self.epoch += self.rng.randrange(1, 4)
        kept = self.rng.randrange(self.high_watermark, self.end.offset + 1)
        self.log = [each for each in self.log if each[0].offset <= kept]
        self.append(1)

    def snapshot(self) -> None:
        committed = [each[0] for each in self.log if each[0].offset <= self.high_watermark]
        if committed:
            self.snapshots.add(self.rng.choice(committed))

    def trim(self) -> None:
        """The log starts at a snapshot; older snapshots are gone."""
        choices = sorted(at for at in self.snapshots if at.offset > self.log_start.offset)
        if choices:
            self.log_start = self.rng.choice(choices)
            self.log = [each for each in self.log if each[1] >= self.log_start.offset]
            self.snapshots = {at for at in self.snapshots if at.offset >= self.log_start.offset}

    def content(self, node: int, snapshot: LogPosition) -> bytes:
        """Each node has the records in another order."""
        return (b"%d at %s;" % (node, str(snapshot).encode())) * (20 + snapshot.offset % 40)

    def committed(self, start: int) -> bytes:
        return b"".join(
            data for end, base, data in self.log if base >= start and end.offset <= self.high_watermark
        )

    # --- what it answers

    def result(self, step: LocateQuorum | AskNode) -> Any:
        node = next(node for node, at in ADDRESSES.items() if at == step.address)
        if node in self.down:
            return NothingHeard(text="connection refused: no process listens there")
        if isinstance(step, LocateQuorum):
            known = ADDRESSES if self.names else {}
            return QuorumNodes(controllers=known, is_controller=True, cluster_id=CLUSTER)
        self.asked.append(step.request)
        if isinstance(step.request, FetchSnapshotRequest):
            return self._chunk(node, step.request)
        return self._fetch(node, step.request)

    def _refusal(self, node: int, request: FetchRequest | FetchSnapshotRequest) -> RaftError:
        if request.cluster_id not in ("", CLUSTER):
            return RaftError.INCONSISTENT_CLUSTER_ID
        if request.epoch != self.epoch:
            is_old = request.epoch < self.epoch
            return RaftError.FENCED_LEADER_EPOCH if is_old else RaftError.UNKNOWN_LEADER_EPOCH
        return RaftError.NONE if node == self.leader else RaftError.NOT_LEADER_OR_FOLLOWER

    def _leader(self) -> dict[str, Any]:
        endpoints = () if self.kafkas else (Endpoint("CONTROLLER", *ADDRESSES[self.leader]),)
        return {"epoch": self.epoch, "leader_id": self.leader, "leader_endpoints": endpoints}

    def _fetch(self, node: int, request: FetchRequest) -> FetchResponse:
        error = self._refusal(node, request)
        if error is RaftError.NONE and request.last_fetched_epoch > request.epoch:
            error = RaftError.INVALID_REQUEST
        if error is not RaftError.NONE:
            return FetchResponse(error=error, **self._leader())
        position = LogPosition(request.last_fetched_epoch, request.fetch_offset)
        common = {
            "error": RaftError.NONE,
            "high_watermark": self.high_watermark,
            "log_start_offset": self.log_start.offset,
            **self._leader(),
        }
        if self._needs_snapshot(position):
            newest = max(self.snapshots, key=lambda at: at.offset)
            return FetchResponse(snapshot=newest, **common)
        diverging = self._divergence(position)
        if diverging is not None:
            return FetchResponse(diverging=diverging, **common)
        return FetchResponse(records=self._records(request), **common)

    def _needs_snapshot(self, position: LogPosition) -> bool:
        if not self.snapshots:
            return False
        start = self.log_start
        if not self.kafkas:
            if position.offset < start.offset:
                return True
            if start.offset == 0 or position in self.snapshots:
                return False
            return bool(self.log) and position.epoch < self.log[0][0].epoch
        earliest = min(self.snapshots, key=lambda at: at.offset)
        if position.offset == 0:
            return True
        at_start = position.offset == start.offset and position.epoch != earliest.epoch
        return position.offset < start.offset or at_start or position.epoch < earliest.epoch

    def _divergence(self, position: LogPosition) -> LogPosition | None:
        if position.offset == 0 or position in self.snapshots:
            return None
        ends = [end for end, _, _ in self.log if end.epoch <= position.epoch]
        end = max(ends, default=self.log_start)
        if end.epoch == max((each[0].epoch for each in self.log), default=self.log_start.epoch):
            end = self.end
        return end if end.epoch != position.epoch or end.offset < position.offset else None

    def _records(self, request: FetchRequest) -> bytes:
        limit = self.end.offset if self.kafkas else self.high_watermark
        after = [
            each for each in self.log if each[0].offset > request.fetch_offset and each[0].offset <= limit
        ]
        if not after:
            return b""
        first = after[0][2]
        size = max(len(first), self.rng.randrange(len(first), len(first) + 2_000))
        whole = b"".join(data for _, _, data in after)
        if self.kafkas:
            return whole[:size]  # it fills its answer to the last byte
        taken = first
        for _, _, data in after[1:]:
            taken += data if len(taken) + len(data) <= size else b""
            if len(taken) + len(data) > size:
                break
        return taken

    def _chunk(self, node: int, request: FetchSnapshotRequest) -> FetchSnapshotResponse:
        error = self._refusal(node, request)
        if error is RaftError.NONE and request.snapshot not in self.snapshots:
            error = RaftError.SNAPSHOT_NOT_FOUND
        if error is not RaftError.NONE:
            if self.kafkas:  # 3.7.0: a null pointer, UNKNOWN_SERVER_ERROR
                return FetchSnapshotResponse(error=RaftError.SNAPSHOT_NOT_FOUND, epoch=0, leader_id=None)
            return FetchSnapshotResponse(error=error, **self._leader())
        content = self.content(node, request.snapshot)
        if request.position >= len(content):
            return FetchSnapshotResponse(error=RaftError.POSITION_OUT_OF_RANGE, **self._leader())
        size = min(request.max_bytes, self.rng.randrange(1, 200))
        return FetchSnapshotResponse(
            error=RaftError.NONE,
            snapshot=request.snapshot,
            size_bytes=len(content),
            position=request.position,
            data=content[request.position : request.position + size],
            **self._leader(),
        )


class MemorySpool:
    """What an observer hands on."""

    def __init__(self) -> None:
        self.segments: dict[int, bytes] = {}
        self.snapshots: dict[LogPosition, bytes] = {}
        self.nothing: LogPosition | None = None
        self.partial: tuple[LogPosition, bytes] | None = None
        self.largest = 0

    def begin(self, offset: int) -> None:
        assert offset not in self.segments and offset >= max(self.segments, default=0)
        self.segments[offset] = b""

    def append(self, records: bytes) -> None:
        self.segments[max(self.segments)] += records
        self.largest = max(self.largest, len(records))

    def begin_snapshot(self, position: LogPosition) -> None:
        self.partial = (position, b"")

    def receive(self, chunk: SnapshotChunk) -> None:
        assert self.partial is not None and self.partial[0] == chunk.snapshot_id
        assert chunk.position == len(self.partial[1])
        data = self.partial[1] + chunk.data
        self.partial = (chunk.snapshot_id, data)
        if chunk.is_last:
            assert len(data) == chunk.size_bytes
            self.snapshots[chunk.snapshot_id] = data
            self.partial = None

    def drop_snapshot(self) -> None:
        self.partial = None

    def nothing_below(self, position: LogPosition) -> None:
        self.nothing = position
