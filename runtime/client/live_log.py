"""Copies the log of a running quorum into a directory, for the tools that read logs.

Owns the requests (Fetch and FetchSnapshot to the active controller, as an observer sends them, KIP-595 and
KIP-630; only the leader knows what is committed), and what the directory holds in the end: the newest
snapshot if the log's beginning is gone, and every committed record that the leader still has. Does not know
records: tools interpret them. Changes nothing on the cluster: the reader's id is -1, like that of a consumer
in Kafka, which is not a replica. Memory is bounded by one response; fetched data is on the disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import grpc.aio
import msgspec
from msgspec.structs import replace

from metaquorum.proto.raft_pb2_grpc import RaftStub
from metaquorum.raft.messages import (
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    RaftError,
    RaftRequest,
    RaftResponse,
)
from metaquorum.runtime.api import raft as raft_codec
from metaquorum.runtime.client.admin import Address, AdminClient, ClientError
from metaquorum.runtime.rpc.channels import END_OF_STREAM, open_channel
from metaquorum.runtime.rpc.reach import status_text
from metaquorum.runtime.tls.material import TlsMaterial
from metaquorum.storage.batches.batch import hop_headers, iter_batches
from metaquorum.storage.disk.interface import Disk, join
from metaquorum.storage.files.meta_properties import MetaProperties, store_meta_properties
from metaquorum.storage.files.snapshots import SnapshotChunk, SnapshotWriter
from metaquorum.storage.log.config import METADATA_DIRECTORY
from metaquorum.storage.log.segment import segment_name
from metaquorum.storage.types import LogPosition
from metaquorum.storage.uuids import random_uuid

READER_ID = -1
FETCH_BYTES = 4 * 1024 * 1024
"""The most bytes of one response; a single larger batch arrives whole."""
ATTEMPTS_MAX = 5
"""Attempts when the leader changes or trims the records being read."""
_PAUSE_S = 0.1

RESERVE_BYTES = 64 * 1024 * 1024
"""Bytes that a copy leaves free on the disk."""

Progress = Callable[[int, int], None]
"""Called after every response with the offset reached and the target offset."""

Room = Callable[[], int]
"""Returns the free bytes of the disk."""


class LiveLog(msgspec.Struct, frozen=True, kw_only=True):
    """What was copied: offsets from `start_offset` up to `end_offset`, which was the high watermark.

    `snapshot` is the snapshot that was copied too; None if the leader has the log from its beginning.
    """

    cluster_id: str
    leader_id: int
    epoch: int
    address: Address
    start_offset: int
    end_offset: int
    snapshot: LogPosition | None = None
    size_bytes: int = 0
    last_epoch: int = 0
    """The leader epoch of the last record that was copied."""


class _Moved(Exception):
    """The leader changed, or the records being read are gone: start over."""


async def copy_log(
    addresses: Sequence[Address],
    disk: Disk,
    home: str,
    *,
    timeout_ms: int,
    tls: TlsMaterial | None = None,
    rng: random.Random,
    on_progress: Progress | None = None,
    room: Room | None = None,
) -> LiveLog:
    """Copies into the empty directory `home`, which then has the layout of a node's.

    `timeout_ms` bounds the wait for one response, not the whole copy. Raises ClientError if no controller
    responds, the leader keeps changing, or the disk has no `room`; ApiError if the copy is refused;
    StorageError if the disk fails.
    """

    async def copy(leader: _Leader) -> LiveLog:
        return await _Copy(leader, disk, on_progress, room).run(home)

    return await _with_leader(addresses, timeout_ms, tls, rng, copy)


async def extend_log(
    addresses: Sequence[Address],
    disk: Disk,
    home: str,
    known: LiveLog,
    *,
    timeout_ms: int,
    tls: TlsMaterial | None = None,
    rng: random.Random,
    on_progress: Progress | None = None,
    room: Room | None = None,
) -> LiveLog:
    """Adds to the copy in `home`, which `known` describes, the records committed since. Raises the errors of
    `copy_log`, and ClientError if another cluster responds or the next records were trimmed; the copy then
    stays as it was."""

    async def extend(leader: _Leader) -> LiveLog:
        return await _Copy(leader, disk, on_progress, room).extend(home, known)

    return await _with_leader(addresses, timeout_ms, tls, rng, extend)


async def _with_leader(
    addresses: Sequence[Address],
    timeout_ms: int,
    tls: TlsMaterial | None,
    rng: random.Random,
    read: Callable[[_Leader], Awaitable[LiveLog]],
) -> LiveLog:
    """The result of `read` on a stream to the active controller; starts over if the leader changes."""
    problem = ""
    for attempt in range(ATTEMPTS_MAX):
        if attempt:
            await asyncio.sleep(_PAUSE_S * attempt)
        found = await _find_leader(addresses, timeout_ms, tls)
        try:
            async with _Leader(found, timeout_ms, tls, rng).connected() as leader:
                return await read(leader)
        except _Moved as error:
            problem = str(error)
    raise ClientError(f"the log could not be read in {ATTEMPTS_MAX} attempts ({problem}); try again later")


async def _find_leader(addresses: Sequence[Address], timeout_ms: int, tls: TlsMaterial | None) -> LiveLog:
    async with AdminClient(addresses, timeout_ms=timeout_ms, tls=tls) as client:
        quorum = await client.describe_quorum()
        cluster = await client.describe_cluster(stale=True)
    where = {one.node_id: (one.host, one.port) for one in cluster.controllers}
    address = where.get(quorum.leader_id)
    if address is None:
        raise ClientError(f"the address of controller {quorum.leader_id} is unknown; try again")
    return LiveLog(
        cluster_id=cluster.cluster_id,
        leader_id=quorum.leader_id,
        epoch=quorum.leader_epoch,
        address=address,
        start_offset=0,
        end_offset=0,
    )


class _Leader:
    """A stream to the leader, with one request at a time."""

    def __init__(self, found: LiveLog, timeout_ms: int, tls: TlsMaterial | None, rng: random.Random) -> None:
        self.found = found
        self._timeout_s = timeout_ms / 1000
        self._tls = tls
        self._reader = random_uuid(rng)
        self._correlation = 0
        self._call: Any = None

    @contextlib.asynccontextmanager
    async def connected(self) -> AsyncIterator[_Leader]:
        """Opens the stream; closes it on exit."""
        channel = open_channel(*self.found.address, self._tls)
        exchange: Any = RaftStub(channel).Exchange
        self._call = exchange()
        try:
            yield self
        finally:
            self._call.cancel()
            await channel.close(None)

    async def fetch(self, offset: int, last_epoch: int) -> FetchResponse:
        """Fetches committed batches from `offset` on, about FETCH_BYTES at most, or the id of a snapshot."""
        answer = await self._ask(
            FetchRequest(
                cluster_id=self.found.cluster_id,
                replica_id=READER_ID,
                replica_directory_id=self._reader,
                epoch=self.found.epoch,
                fetch_offset=offset,
                last_fetched_epoch=last_epoch,
                high_watermark=-1,
                max_wait_ms=0,
                max_bytes=FETCH_BYTES,
            )
        )
        if not isinstance(answer, FetchResponse):
            raise _Moved(f"got {type(answer).__name__} as the answer to a fetch")
        return answer

    async def chunk(self, snapshot: LogPosition, position: int) -> FetchSnapshotResponse:
        """Bytes of a snapshot from `position` on."""
        answer = await self._ask(
            FetchSnapshotRequest(
                cluster_id=self.found.cluster_id,
                replica_id=READER_ID,
                replica_directory_id=self._reader,
                epoch=self.found.epoch,
                snapshot=snapshot,
                position=position,
                max_bytes=FETCH_BYTES,
            )
        )
        if not isinstance(answer, FetchSnapshotResponse):
            raise _Moved(f"got {type(answer).__name__} as the answer to a snapshot fetch")
        return answer

    async def _ask(self, request: RaftRequest) -> RaftResponse:
        self._correlation += 1
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._call.write(raft_codec.encode(self._correlation, request))
                envelope = await self._call.read()
        except TimeoutError:
            raise _Moved(f"controller {self.found.leader_id} did not answer in time") from None
        except grpc.aio.AioRpcError as error:
            raise _Moved(f"controller {self.found.leader_id}: {status_text(error)}") from error
        except asyncio.InvalidStateError as error:
            raise _Moved(f"controller {self.found.leader_id} closed the stream") from error
        if envelope is END_OF_STREAM or envelope.correlation_id != self._correlation:
            raise _Moved(f"controller {self.found.leader_id} closed the stream")
        try:
            answer = raft_codec.decode_response(envelope)
        except raft_codec.EnvelopeError as error:
            raise ClientError(f"controller {self.found.leader_id} runs another release: {error}") from error
        if answer.error is not RaftError.NONE:
            raise _Moved(f"controller {self.found.leader_id} answered {answer.error.name}")
        return answer


class _Copy:
    """One attempt: the snapshot first, if one is needed, then the log."""

    def __init__(self, leader: _Leader, disk: Disk, on_progress: Progress | None, room: Room | None) -> None:
        self._leader = leader
        self._disk = disk
        self._room = room
        self._tell = on_progress or (lambda offset, target: None)

    async def run(self, home: str) -> LiveLog:
        directory = join(home, METADATA_DIRECTORY)
        self._disk.make_directory(directory)
        for name in self._disk.list_directory(directory):
            self._disk.remove(join(directory, name))  # left from an abandoned attempt
        found = self._leader.found
        first = await self._first()
        start, last_epoch = 0, 0
        if first.snapshot is not None:
            # Also copy the records before the snapshot that the leader still has. Any epoch that the leader
            # knows passes its divergence check, since this reader has no log that could diverge.
            start, last_epoch = first.log_start_offset, found.epoch
            await self._copy_snapshot(directory, first.snapshot)
        end, size, epoch = await self._copy_records(directory, start, start, last_epoch, first.high_watermark)
        identity = MetaProperties(cluster_id=found.cluster_id, node_id=found.leader_id)
        store_meta_properties(self._disk, home, identity)
        return replace(
            found,
            start_offset=start,
            end_offset=end,
            snapshot=first.snapshot,
            size_bytes=size,
            last_epoch=epoch,
        )

    async def extend(self, home: str, known: LiveLog) -> LiveLog:
        """Appends the records committed after `known` to its segment."""
        found = self._leader.found
        if found.cluster_id != known.cluster_id:
            raise ClientError(
                f"cluster {found.cluster_id} now answers, but the log belongs to {known.cluster_id}"
            )
        answer = await self._leader.fetch(known.end_offset, known.last_epoch)
        if answer.snapshot is not None:
            raise ClientError(
                f"the records after offset {known.end_offset - 1} were deleted; read the log again"
            )
        directory = join(home, METADATA_DIRECTORY)
        end, size, epoch = await self._copy_records(
            directory, known.start_offset, known.end_offset, known.last_epoch, answer.high_watermark
        )
        return replace(
            known,
            leader_id=found.leader_id,
            epoch=found.epoch,
            address=found.address,
            end_offset=end,
            size_bytes=size,
            last_epoch=epoch,
        )

    def _need(self, size_bytes: int) -> None:
        free = None if self._room is None else self._room()
        if free is not None and free < size_bytes + RESERVE_BYTES:
            raise ClientError(
                f"the disk has {free >> 20} MiB free, of which {RESERVE_BYTES >> 20} must stay free: the "
                "log does not fit; set TMPDIR to a directory on a larger disk"
            )

    async def _first(self) -> FetchResponse:
        """The response to a reader without records, once the leader knows what is committed."""
        for _ in range(ATTEMPTS_MAX):
            answer = await self._leader.fetch(0, 0)
            if answer.high_watermark >= 0 or answer.snapshot is not None:
                return answer
            await asyncio.sleep(_PAUSE_S)
        raise _Moved(f"controller {self._leader.found.leader_id} does not know yet what is committed")

    async def _copy_snapshot(self, directory: str, snapshot: LogPosition) -> None:
        writer = SnapshotWriter(self._disk, directory, snapshot)
        try:
            while True:
                answer = await self._leader.chunk(snapshot, writer.size_bytes)
                chunk = SnapshotChunk(
                    snapshot_id=snapshot,
                    position=answer.position,
                    size_bytes=answer.size_bytes,
                    data=answer.data,
                )
                if not answer.data and not chunk.is_last:
                    raise _Moved("a chunk of the snapshot was empty")
                self._need(len(answer.data))
                writer.receive(chunk)
                if chunk.is_last:
                    writer.freeze()
                    return
        finally:
            writer.close()

    async def _copy_records(
        self, directory: str, segment: int, offset: int, last_epoch: int, target: int
    ) -> tuple[int, int, int]:
        """Appends records from `offset` on to a segment; returns (offset reached, bytes of the segment, last
        epoch)."""
        file = self._disk.open_append(join(directory, segment_name(segment)))
        try:
            while offset < target:
                answer = await self._leader.fetch(offset, last_epoch)
                if answer.snapshot is not None or answer.diverging is not None:
                    raise _Moved("the records were deleted while they were read")
                if not hop_headers(answer.records):
                    raise _Moved(f"got nothing from offset {offset}, although {target} is committed")
                for batch in iter_batches(answer.records, file="fetched log", expected_offset=offset):
                    offset, last_epoch = batch.header.next_offset, batch.header.leader_epoch
                self._need(len(answer.records))
                file.append(answer.records)
                self._tell(offset, target)
            return offset, file.size(), last_epoch
        finally:
            file.close()
