"""The recorded leaders of Kafka's quorum, for a follower of ours: they answer with Kafka's batches."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from msgspec import structs

from metaquorum.metadata.records.codec import encode
from metaquorum.metadata.records.types import NoOpRecord
from metaquorum.storage.batches.batch import RecordBatch, iter_batches
from metaquorum.storage.batches.encode import encode_batch
from metaquorum.wire.messages import FetchRequest, FetchResponse, VoteRequest, VoteResponse
from tests.e2e.cluster import HOST, client_loop
from tests.e2e.golden_nodes import FETCH, Exchange, batches
from tests.unit.kafka.kafka_node import FakeNode

POLL_S = 0.2
OFFERED = {"Fetch": (0, 16), "FetchSnapshot": (0, 0), "Vote": (0, 0)}
"""What Kafka 3.7 said in ApiVersions of what a follower of ours may ask."""


def log_of(found: Iterable[Exchange]) -> list[RecordBatch]:
    """The batches that the answers to fetches had, each once, by offset. Between recordings, nothing but idle
    leaders' records were written: they are made again."""
    seen: dict[int, RecordBatch] = {}
    for each in found:
        for batch in batches(each.answer) if each.header.api_key == FETCH else ():
            seen.setdefault(batch.header.base_offset, batch)
    log: list[RecordBatch] = []
    for offset in sorted(seen):
        end = log[-1].header.next_offset if log else 0
        log += [_idle(each, seen[offset].header.leader_epoch) for each in range(end, offset)]
        log.append(seen[offset])
    return log


def _idle(offset: int, epoch: int) -> RecordBatch:
    data = encode_batch(
        base_offset=offset, leader_epoch=epoch, timestamp_ms=0, values=[encode(NoOpRecord(), 0)]
    )
    return next(iter(iter_batches(data)))


class _Served:
    """A node behind a port, on the clients' loop."""

    _node: FakeNode

    def start(self, port: int) -> None:
        async def begin() -> asyncio.Server:
            return await asyncio.get_running_loop().create_server(self._node.connection, HOST, port)

        self._server = client_loop().call(begin())

    def close(self) -> None:
        async def end() -> None:
            self._server.close()
            for each in list(self._node.open):
                each.end()

        client_loop().call(end())


class GoldenLeader(_Served):
    """A leader with its epoch and the log that it had when it ceased to lead. `reached`: how far the follower
    has the log."""

    def __init__(self, node_id: int, epoch: int, log: list[RecordBatch]) -> None:
        self.node_id, self.epoch = node_id, epoch
        self.log = [each for each in log if each.header.leader_epoch <= epoch]
        self.reached = 0
        handlers: dict[str, Any] = {"Fetch": self._fetch, "Vote": self._vote}
        self._node = FakeNode(handlers | self._more(), **OFFERED)

    def _more(self) -> dict[str, Any]:
        return {}

    @property
    def end(self) -> int:
        return self.log[-1].header.next_offset

    async def _fetch(self, request: FetchRequest) -> Any:
        (topic,) = request.topics
        (asked,) = topic.partitions
        self.reached = asked.fetch_offset
        rest = [each for each in self.log if each.header.base_offset >= asked.fetch_offset]
        if not rest:
            await asyncio.sleep(POLL_S)
        types = FetchResponse
        part = types.PartitionData(
            partition_index=0,
            high_watermark=self.end,
            last_stable_offset=-1,
            log_start_offset=0,
            current_leader=types.LeaderIdAndEpoch(leader_id=self.node_id, leader_epoch=self.epoch),
            records=b"".join(bytes(each.data) for each in rest[:1]),
        )
        answer = types(responses=(types.FetchableTopicResponse(topic_id=topic.topic_id, partitions=(part,)),))
        return structs.replace(answer, session_id=0)

    async def _vote(self, request: Any) -> Any:
        raise AssertionError(f"a follower that hears of its leader asks for no votes: {request}")


class SnapshotLeader(GoldenLeader):
    """A recorded leader whose log begins after a snapshot: it refers a follower without a log to it, and
    sends it, as recorded."""

    def __init__(
        self, node_id: int, epoch: int, log: list[RecordBatch], redirect: Any, snapshot: Exchange
    ) -> None:
        super().__init__(node_id, epoch, log)
        self._redirect, self._snapshot = redirect, snapshot
        self.was_asked_for_snapshot = False

    def _more(self) -> dict[str, Any]:
        return {"FetchSnapshot": self._fetch_snapshot}

    async def _fetch(self, request: FetchRequest) -> Any:
        is_new = request.topics[0].partitions[0].fetch_offset == 0
        return self._redirect if is_new else await super()._fetch(request)

    def _fetch_snapshot(self, request: Any) -> Any:
        (asked,) = request.topics[0].partitions
        (theirs,) = self._snapshot.body.topics[0].partitions
        assert (asked.snapshot_id, asked.position) == (theirs.snapshot_id, theirs.position)
        self.was_asked_for_snapshot = True
        return self._snapshot.answer


class GoldenVoter(_Served):
    """A voter of Kafka 3.7 that grants every vote, and does nothing else. `epoch`: of the last one."""

    def __init__(self) -> None:
        self.epoch = 0
        self._node = FakeNode({"Vote": self._vote}, Vote=(0, 0))

    def _vote(self, request: VoteRequest) -> VoteResponse:
        (topic,) = request.topics
        self.epoch = topic.partitions[0].replica_epoch
        types = VoteResponse
        part = types.PartitionData(
            partition_index=0, leader_id=-1, leader_epoch=self.epoch, vote_granted=True
        )
        return types(topics=(types.TopicData(topic_name=topic.topic_name, partitions=(part,)),))
