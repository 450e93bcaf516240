"""Copies the log of a running quorum into a directory, for the tools that read logs: in Kafka's protocol, or
over gRPC where a controller of metaquorum speaks that.

`observer` decides what is asked and kept. This has the connections and the files.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any, Protocol

import grpc
import grpc.aio
import msgspec

from metaquorum.clients.kafka.cluster import CLIENT_ID, client_context
from metaquorum.clients.kafka.connection import (
    ClosedAtOnce,
    ConnectionClosed,
    ConnectionFailed,
    HostUnknown,
    LoginNotOffered,
    LoginRefused,
    NodeConnection,
    TlsFailed,
    UnsupportedVersion,
    WrongProtocol,
    connect,
)
from metaquorum.clients.kafka.grpc_way import GrpcWay
from metaquorum.clients.kafka.login import ClientSecurity, log_in
from metaquorum.clients.kafka.observer import (
    AskNode,
    CopyProgress,
    CopyResumed,
    CopyTrouble,
    LiveLog,
    LocateQuorum,
    LogObserver,
    NothingHeard,
    PauseFor,
    QuorumNodes,
)
from metaquorum.clients.kafka.quorum import (
    OFFERED,
    VoterEnd,
    VoterReport,
    answer_of,
    describe_quorum,
    given_reports,
    look,
    quorum_at,
    voter_ends,
    voter_reports,
)
from metaquorum.clients.kafka.raft_messages import api_of, request_body
from metaquorum.clients.search import Address, ClientError
from metaquorum.clock import SystemClock
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.snapshot import snapshot_batches
from metaquorum.metadata.text.addresses import address_text
from metaquorum.network.tls import TlsMaterial
from metaquorum.proto import admin_pb2 as admin
from metaquorum.proto.admin_pb2_grpc import AdminStub
from metaquorum.raft.messages import FetchRequest, FetchSnapshotRequest
from metaquorum.rpc.channels import open_channel
from metaquorum.rpc.messages import tables as admin_codec
from metaquorum.rpc.messages.errors import leader_from_pb
from metaquorum.rpc.reach import UNREADABLE, lasts
from metaquorum.rpc.transport import PeerAddress
from metaquorum.storage.batches.format import hop_headers
from metaquorum.storage.disk.interface import Disk, DiskFile, join
from metaquorum.storage.files.meta_properties import MetaProperties, store_meta_properties
from metaquorum.storage.files.snapshots import SnapshotChunk, SnapshotWriter
from metaquorum.storage.log.config import METADATA_DIRECTORY
from metaquorum.storage.log.segment import list_segments, segment_name
from metaquorum.storage.types import LogPosition
from metaquorum.storage.uuids import random_uuid

ANSWER_MAX_BYTES = 64 * 1024 * 1024
"""The largest response that is read: a fetch may carry one batch of any size."""
RESERVE_BYTES = 64 * 1024 * 1024
"""Bytes that a copy leaves free on the disk."""
SEGMENT_BYTES = 16 * 1024 * 1024
"""A larger segment of a copy ends: a reader that follows needs no more than the last ones."""

OnProgress = Callable[[int, int], None]
"""Called with the offset reached and the target offset."""

Room = Callable[[], int]
"""Returns the free bytes of the disk."""


class LogSpool:
    """The log as files of a node with the home directory `home`, which is empty, or has what `copied`
    describes. Raises ClientError if the disk has no `room`, StorageError if it fails."""

    def __init__(
        self, disk: Disk, home: str, *, room: Room | None = None, copied: LiveLog | None = None
    ) -> None:
        self._disk = disk
        self._home = home
        self._directory = join(home, METADATA_DIRECTORY)
        self._room = room
        self._file: DiskFile | None = None
        self._size = 0
        self._snapshot: SnapshotWriter | None = None
        disk.make_directory(self._directory)
        if copied is not None:
            self.begin(max(list_segments(disk, self._directory), default=copied.start_offset))

    def begin(self, offset: int) -> None:
        self._close_file()
        self._file = self._disk.open_append(join(self._directory, segment_name(offset)))
        self._size = self._file.size()

    def append(self, records: bytes) -> None:
        self._need(len(records))
        if self._file is not None and self._size >= SEGMENT_BYTES:
            self.begin(hop_headers(records)[0][1])
        if self._file is not None:
            self._file.append(records)
            self._size += len(records)

    def begin_snapshot(self, position: LogPosition) -> None:
        self.drop_snapshot()
        self._snapshot = SnapshotWriter(self._disk, self._directory, position)

    def receive(self, chunk: SnapshotChunk) -> None:
        self._need(len(chunk.data))
        if self._snapshot is not None:
            self._snapshot.receive(chunk)
            if chunk.is_last:
                self._snapshot.freeze()
                self._snapshot = None

    def drop_snapshot(self) -> None:
        if self._snapshot is not None:
            self._snapshot.close()
            self._snapshot = None

    def nothing_below(self, position: LogPosition) -> None:
        self.begin_snapshot(position)
        data = b"".join(snapshot_batches(MetadataImage(), position=position, timestamp_ms=0))
        self.receive(SnapshotChunk(snapshot_id=position, position=0, size_bytes=len(data), data=data))

    def identify(self, log: LiveLog) -> None:
        """Writes whose log it is."""
        if log.cluster_id is not None:
            identity = MetaProperties(cluster_id=log.cluster_id, node_id=log.leader_id)
            store_meta_properties(self._disk, self._home, identity)

    def close(self) -> None:
        self._close_file()
        self.drop_snapshot()

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _need(self, size_bytes: int) -> None:
        free = None if self._room is None else self._room()
        if free is not None and free < size_bytes + RESERVE_BYTES:
            raise ClientError(
                f"the disk has {free >> 20} MiB free, of which {RESERVE_BYTES >> 20} must stay free: the "
                "log does not fit; set TMPDIR to a directory on a larger disk"
            )


class LiveSource(msgspec.Struct, frozen=True, kw_only=True):
    """A running quorum. `addresses`: of controllers, or of brokers that name them. `timeout_ms` bounds the
    wait for one response, not the whole copy; `rate` the bytes per second."""

    addresses: Sequence[Address]
    timeout_ms: int
    security: ClientSecurity = ClientSecurity()
    rate: int | None = None


class FollowingCopy(msgspec.Struct, frozen=True, kw_only=True):
    """For copies that continue. `on_complete` is called once everything is copied that was committed at the
    first answer, `on_trouble` with one line if no node answers for a while, `on_return` if one does again."""

    on_complete: Callable[[LiveLog], None]
    on_trouble: Callable[[str], None]
    on_return: Callable[[str], None]


async def copy_log(
    source: LiveSource,
    spool: LogSpool,
    *,
    rng: random.Random,
    copied: LiveLog | None = None,
    on_progress: OnProgress | None = None,
    following: FollowingCopy | None = None,
) -> LiveLog:
    """Copies into the spool what was committed at the first answer, or with `copied`, which the spool has,
    what was committed since. With `following` it continues until it is cancelled.

    Raises ClientError as `LogObserver` does or if the disk has no room, StorageError if it fails, ConfigError
    for TLS files that cannot be read.
    """
    nodes = _Nodes(source)
    observer = LogObserver(
        source.addresses,
        spool,
        reader=random_uuid(rng),
        rng=rng,
        timeout_ms=source.timeout_ms,
        copied=copied,
        rate=source.rate,
        follows=following is not None,
    )
    clock, steps = SystemClock(), observer.run()
    is_complete = False
    try:
        step = next(steps)
        while True:
            result: Any = None
            match step:
                case LocateQuorum() | AskNode():
                    result = await nodes.result(step)
                case PauseFor(wait_ms=wait_ms):
                    await asyncio.sleep(wait_ms / 1000)
                case CopyTrouble(text=text):
                    if following is not None:
                        following.on_trouble(text)
                case CopyResumed(text=text):
                    if following is not None:
                        following.on_return(text)
                case CopyProgress(end_offset=end, target_offset=target):
                    if on_progress is not None:
                        on_progress(end, target)
                    if step.is_complete and not is_complete:
                        is_complete = True
                        spool.identify(observer.log)
                        if following is None:
                            return observer.log
                        following.on_complete(observer.log)
            step = steps.send((clock.monotonic_ms(), result))
    finally:
        steps.close()
        spool.close()
        await nodes.close()


async def ask_voters(source: LiveSource, log: LiveLog) -> list[VoterReport]:
    """What can be learned of the voters of the quorum whose log was read; of the controllers at the given
    addresses, if the leader refuses to say who votes. Raises ClientError if it does not say it and no other
    controller is given, ConfigError for TLS files that cannot be read."""
    nodes = _Nodes(source)
    try:
        located, ends = await nodes.result(LocateQuorum(log.address)), await nodes.voters(log.address)
        is_refused = isinstance(ends, NothingHeard) and ends.is_refusal
        for heard in (located, () if is_refused else ends):
            if isinstance(heard, NothingHeard):
                raise ClientError(f"{address_text(*log.address)}: {heard.text}")
        addresses, unnamed = {**located.controllers, log.leader_id: log.address}, []
        # Kafka's controllers name their addresses to principals with Alter only, brokers those configured.
        for given in source.addresses:
            if not is_refused and all(each.node_id in addresses for each in ends):
                break
            named = await nodes.result(LocateQuorum(given))
            if isinstance(named, NothingHeard) or named.is_controller:
                unnamed.append(given)
            if not isinstance(named, NothingHeard):
                addresses = {**named.controllers, **addresses}
        if is_refused:
            ids = {address: node_id for node_id, address in addresses.items()}
            answers = await _looks(nodes, log, (*ids, *unnamed))
            if not answers:
                raise ClientError(f"{address_text(*log.address)}: {ends.text}")
            return list(given_reports(log, ids, answers))
        answers = await _looks(
            nodes, log, [addresses[each.node_id] for each in ends if each.node_id in addresses]
        )
        said = {node_id: answers[address] for node_id, address in addresses.items() if address in answers}
        return list(voter_reports(log, ends, addresses, said))
    finally:
        await nodes.close()


async def _looks(nodes: _Nodes, log: LiveLog, addresses: Iterable[Address]) -> dict[Address, Any]:
    """What controllers other than the leader answer to a look at the log."""
    others = [each for each in dict.fromkeys(addresses) if each != log.address]
    answers = await asyncio.gather(*(nodes.result(AskNode(each, look(log))) for each in others))
    return dict(zip(others, answers, strict=True))


class _Node(Protocol):
    """A connection to a node."""

    async def voters(self, timeout_s: float) -> Sequence[VoterEnd] | NothingHeard: ...

    async def locate(self, timeout_s: float) -> QuorumNodes | NothingHeard: ...

    async def ask(self, request: FetchRequest | FetchSnapshotRequest, timeout_s: float) -> Any: ...

    async def close(self) -> None: ...


class _Nodes:
    """Connections, one per address. A node that fails is connected again."""

    def __init__(self, source: LiveSource) -> None:
        security = source.security
        self._security = security
        self._context = client_context(security)
        self._tls = None if security.tls is None else TlsMaterial.load(security.tls)
        self._timeout_s = source.timeout_ms / 1000
        self._requested = frozenset(source.addresses)
        self._open: dict[Address, _Node] = {}
        self._refused = ClosedAtOnce()

    async def close(self) -> None:
        for address in list(self._open):
            await self._forget(address)

    async def result(self, step: LocateQuorum | AskNode) -> Any:
        """The result of a step: NothingHeard rather than an exception."""
        timeout_s = self._timeout_s / 2  # an unresponsive node must leave time for another
        if isinstance(step, LocateQuorum):
            return await self._at(step.address, timeout_s, lambda node: node.locate(timeout_s))
        request = step.request
        if isinstance(request, FetchRequest):
            timeout_s += request.max_wait_ms / 1000
        return await self._at(step.address, timeout_s, lambda node: node.ask(request, timeout_s))

    async def voters(self, address: Address) -> Any:
        """The VoterEnds that a node names, or NothingHeard."""
        timeout_s = self._timeout_s / 2
        return await self._at(address, timeout_s, lambda node: node.voters(timeout_s))

    async def _at(self, address: Address, timeout_s: float, use: Callable[[_Node], Awaitable[Any]]) -> Any:
        try:
            async with asyncio.timeout(timeout_s):
                node = self._open.get(address)
                if node is None:
                    node = self._open[address] = await self._connect(address, timeout_s)
                heard = await use(node)
        except TimeoutError:
            heard = NothingHeard(text="no answer in time")
        except (TlsFailed, LoginRefused, WrongProtocol, UnsupportedVersion, HostUnknown) as error:
            heard = NothingHeard(text=str(error), lasts=True)
        except ConnectionFailed as error:
            heard = NothingHeard(text=str(error))
        if isinstance(heard, NothingHeard):
            await self._forget(address)
        return heard

    async def _forget(self, address: Address) -> None:
        node = self._open.pop(address, None)
        if node is not None:
            await node.close()

    async def _connect(self, address: Address, timeout_s: float) -> _Node:
        open_one = partial(
            connect,
            *address,
            client_id=CLIENT_ID,
            tls=self._context,
            answer_max_bytes=ANSWER_MAX_BYTES,
            timeout_s=timeout_s,
        )
        try:
            connection = await open_one()
        except WrongProtocol:
            return _GrpcNode(address, self._tls)
        except ConnectionClosed:
            if self._tls is None:
                raise
            return _GrpcNode(address, self._tls)  # it takes no TLS connection that is not for HTTP/2
        if self._security.login is not None:
            try:
                await log_in(connection, self._security.login, timeout_s=timeout_s)
            except LoginNotOffered:
                if address in self._requested:
                    raise
                connection = await open_one()  # a controllers' listener without logins, named by a broker
        return _KafkaNode(address, connection, self._security, self._refused)


class _KafkaNode:
    """A node of Kafka's protocol. `refused`: nodes that closed a connection at its first request."""

    def __init__(
        self, address: Address, connection: NodeConnection, security: ClientSecurity, refused: ClosedAtOnce
    ) -> None:
        self._address = address
        self._connection = connection
        self._security = security
        self._refused = refused

    async def locate(self, timeout_s: float) -> QuorumNodes | NothingHeard:
        steps = quorum_at(self._address, self._connection.offers)
        try:
            body = next(steps)
            while True:
                body = steps.send(await self._ask(body, timeout_s))
        except StopIteration as end:
            found: QuorumNodes | NothingHeard = end.value
            return found

    async def voters(self, timeout_s: float) -> Sequence[VoterEnd] | NothingHeard:
        if not self._connection.offers("DescribeQuorum", 0):
            return NothingHeard(text="it does not answer DescribeQuorum", lasts=True)
        return voter_ends(await self._ask(describe_quorum(), timeout_s))

    async def ask(self, request: FetchRequest | FetchSnapshotRequest, timeout_s: float) -> Any:
        version = self._connection.version(api_of(request), *OFFERED[api_of(request)])
        return answer_of(await self._ask(request_body(request, version), timeout_s, version), version)

    async def _ask(self, body: Any, timeout_s: float, version: int | None = None) -> Any:
        login = self._security.login
        if login is not None and self._connection.login_is_due:
            await log_in(self._connection, login, timeout_s=timeout_s)
        try:
            answer = await self._connection.ask(body, version=version, timeout_s=timeout_s)
        except ConnectionClosed as error:
            if self._connection.has_answered or login is not None:
                raise
            raise self._refused.closed(self._address) from error
        self._refused.answered(self._address)
        return answer.body

    async def close(self) -> None:
        self._connection.close()


class _GrpcNode:
    """A controller of metaquorum at a gRPC port."""

    def __init__(self, address: Address, tls: TlsMaterial | None) -> None:
        self._address = address
        self._way = GrpcWay.of(CLIENT_ID, tls)
        self._reasons = self._way.reasons
        self._channel = open_channel(*address, tls)
        self._connection: NodeConnection | None = None

    async def locate(self, timeout_s: float) -> QuorumNodes | NothingHeard:
        """The leader knows where all voters listen; another controller names the leader."""
        stub = AdminStub(self._channel)
        try:
            node = await stub.DescribeNode(admin.DescribeNodeRequest(), timeout=timeout_s)
            quorum = await stub.DescribeQuorum(admin.DescribeQuorumRequest(), timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            return await self._failed(error)
        if node is None or quorum is None:  # gRPC returns None for what it cannot decode
            return NothingHeard(text=UNREADABLE, lasts=True)
        controllers = {
            each.node_id: (at.host, at.port) for each in quorum.voters for at in each.endpoints[:1]
        }
        leader = leader_from_pb(quorum.error)
        if leader is not None:
            controllers[leader.node_id] = (leader.host, leader.port)
        return QuorumNodes(controllers=controllers, is_controller=True, cluster_id=node.cluster_id or None)

    async def voters(self, timeout_s: float) -> Sequence[VoterEnd] | NothingHeard:
        try:
            answer = await AdminStub(self._channel).DescribeQuorum(
                admin.DescribeQuorumRequest(), timeout=timeout_s
            )
        except grpc.aio.AioRpcError as error:
            return await self._failed(error)
        if answer is None:
            return NothingHeard(text=UNREADABLE, lasts=True)
        quorum = admin_codec.QUORUM.from_pb(answer)
        return [VoterEnd(each.node_id, each.log_end_offset, each.last_fetch_ms) for each in quorum.voters]

    async def ask(self, request: FetchRequest | FetchSnapshotRequest, timeout_s: float) -> Any:
        if self._connection is None:
            self._connection = await self._way.open(PeerAddress(*self._address), timeout_s=timeout_s)
        version = self._connection.version(api_of(request), *OFFERED[api_of(request)])
        body = request_body(request, version)
        answer = await self._connection.ask(body, version=version, timeout_s=timeout_s)
        return answer_of(answer.body, version)

    async def _failed(self, error: grpc.aio.AioRpcError) -> NothingHeard:
        text = await self._reasons.of(error, self._address)
        refused = error.code() in (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED)
        return NothingHeard(text=text, lasts=lasts(text), is_refusal=refused)

    async def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        await self._channel.close(None)
