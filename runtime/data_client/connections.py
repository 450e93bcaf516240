"""How the data client reaches nodes: calls on one address each, as values; and the same over gRPC.

Owns channels, the streams on which batches are produced, and time limits of single calls. Which node is asked
and what is asked again is the business of those who call. Everything raises `LinkError` when there was no
answer: whether the request was carried out is unknown then. A refusal of a whole request is an `ApiError`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import grpc.aio

from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image.types import BrokerRegistration, TopicInfo
from metaquorum.metadata.requests import data as api
from metaquorum.proto import data_pb2 as pb
from metaquorum.proto import metadata_pb2 as meta
from metaquorum.proto.data_pb2_grpc import DataStub
from metaquorum.proto.metadata_pb2_grpc import MetadataStub
from metaquorum.runtime.api import data as codec
from metaquorum.runtime.api.errors import error_from_pb, leader_from_pb
from metaquorum.runtime.api.image import BROKER, PARTITION
from metaquorum.runtime.client.admin import Address, TopicDescription
from metaquorum.runtime.rpc.channels import END_OF_STREAM, TlsMaterial, open_channel
from metaquorum.runtime.rpc.reach import UNREADABLE, Reasons, status_text

T = TypeVar("T")
ANSWER_SLACK_MS = 1_000
"""What a call may take beyond the time that the broker had to wait."""


class LinkError(Exception):
    """A node gave no answer. Whether it did what was asked is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataAnswer:
    """What one node says of brokers and topics. `linearizable`: nothing newer was committed."""

    brokers: tuple[BrokerRegistration, ...]
    topics: tuple[TopicDescription, ...]
    unknown_names: frozenset[str]
    linearizable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Referral:
    """A standby controller's answer to who wants the newest metadata: ask the active one, at `to` where it is
    known, or be content with what the standby has (`stale`)."""

    to: Address | None
    problem: str


class Connections(Protocol):
    """The nodes of a cluster, by address."""

    def produce(
        self, address: Address, request: api.ProduceRequest, *, timeout_ms: int
    ) -> asyncio.Future[api.ProduceResponse | ApiError]:
        """Sends it behind the requests that were given before for this address, which are carried out in
        that order. With acks 0 the future is done when the request was sent. Its exception: LinkError."""
        ...

    def drop(self, address: Address) -> None:
        """Gives up on the requests under way to this address: their futures end with LinkError."""
        ...

    async def fetch(
        self, address: Address, request: api.FetchRequest, *, timeout_ms: int
    ) -> api.FetchResponse | ApiError: ...

    async def list_offsets(
        self, address: Address, request: api.ListOffsetsRequest, *, timeout_ms: int
    ) -> api.ListOffsetsResponse | ApiError: ...

    async def init_producer_id(
        self, address: Address, request: api.InitProducerIdRequest, *, timeout_ms: int
    ) -> api.InitProducerIdResponse | ApiError: ...

    async def metadata(
        self, address: Address, names: Sequence[str], *, timeout_ms: int, stale: bool = False
    ) -> MetadataAnswer | Referral | ApiError: ...

    async def close(self) -> None: ...


class GrpcConnections:
    """One channel and one produce stream for each address, opened when first used."""

    def __init__(self, tls: TlsMaterial | None = None) -> None:
        self._tls = tls
        self._reasons = Reasons(tls)
        self._channels: dict[Address, grpc.aio.Channel] = {}
        self._streams: dict[Address, _ProduceStream] = {}

    def produce(
        self, address: Address, request: api.ProduceRequest, *, timeout_ms: int
    ) -> asyncio.Future[api.ProduceResponse | ApiError]:
        stream = self._streams.get(address)
        if stream is None or stream.broken:
            stream = self._streams[address] = _ProduceStream(address, self._data(address))
        return stream.send(request, timeout_ms)

    def drop(self, address: Address) -> None:
        stream = self._streams.pop(address, None)
        if stream is not None:
            stream.break_off("it did not answer and is no longer the leader")

    async def fetch(
        self, address: Address, request: api.FetchRequest, *, timeout_ms: int
    ) -> api.FetchResponse | ApiError:
        method = self._data(address).Fetch
        answer = await self._ask(address, method, codec.FETCH.to_pb(request), timeout_ms)
        return codec.FETCHED.answer_from_pb(answer)

    async def list_offsets(
        self, address: Address, request: api.ListOffsetsRequest, *, timeout_ms: int
    ) -> api.ListOffsetsResponse | ApiError:
        method = self._data(address).ListOffsets
        answer = await self._ask(address, method, codec.LIST_OFFSETS.to_pb(request), timeout_ms)
        return codec.LISTED_OFFSETS.answer_from_pb(answer)

    async def init_producer_id(
        self, address: Address, request: api.InitProducerIdRequest, *, timeout_ms: int
    ) -> api.InitProducerIdResponse | ApiError:
        message = codec.INIT_PRODUCER_ID.to_pb(request)
        answer = await self._ask(address, self._data(address).InitProducerId, message, timeout_ms)
        return codec.PRODUCER_ID.answer_from_pb(answer)

    async def describe_log_dirs(
        self, address: Address, request: api.DescribeLogDirsRequest, *, timeout_ms: int
    ) -> api.DescribeLogDirsResponse | ApiError:
        message = codec.DESCRIBE_LOG_DIRS.to_pb(request)
        answer = await self._ask(address, self._data(address).DescribeLogDirs, message, timeout_ms)
        return codec.LOG_DIRS.answer_from_pb(answer)

    async def mark_log_dir_offline(
        self, address: Address, request: api.MarkLogDirOfflineRequest, *, timeout_ms: int
    ) -> api.MarkLogDirOfflineResponse | ApiError:
        message = codec.MARK_LOG_DIR_OFFLINE.to_pb(request)
        answer = await self._ask(address, self._data(address).MarkLogDirOffline, message, timeout_ms)
        return codec.MARKED_LOG_DIR.answer_from_pb(answer)

    async def metadata(
        self, address: Address, names: Sequence[str], *, timeout_ms: int, stale: bool = False
    ) -> MetadataAnswer | Referral | ApiError:
        stub = MetadataStub(self._channel(address))
        consistency = meta.CONSISTENCY_STALE if stale else meta.CONSISTENCY_DEFAULT
        listing = meta.ListBrokersRequest(consistency=consistency)
        brokers = await self._ask(address, stub.ListBrokers, listing, timeout_ms)
        if brokers.HasField("error"):
            return _refused(brokers.error)
        found: dict[str, TopicDescription] = {}
        unknown: set[str] = set()
        linearizable = brokers.read.linearizable
        request = meta.DescribeTopicsRequest(consistency=consistency, names=names)
        while names:
            answer = await self._ask(address, stub.DescribeTopics, request, timeout_ms)
            if answer.HasField("error"):
                return _refused(answer.error)
            linearizable = linearizable and answer.read.linearizable
            unknown.update(answer.unknown_names)
            for each in answer.topics:
                earlier = found[each.name].partitions if each.name in found else ()
                partitions = tuple(PARTITION.from_pb(one, each.topic_id) for one in each.partitions)
                info = TopicInfo(each.topic_id, each.name)
                found[each.name] = TopicDescription(info=info, partitions=earlier + partitions)
            if not answer.HasField("next"):
                break
            request.start.CopyFrom(answer.next)
        return MetadataAnswer(
            brokers=tuple(BROKER.from_pb(each) for each in brokers.brokers),
            topics=tuple(found.values()),
            unknown_names=frozenset(unknown),
            linearizable=linearizable,
        )

    async def close(self) -> None:
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.break_off("the client was closed")
        channels, self._channels = self._channels, {}
        await asyncio.gather(*(each.close(None) for each in channels.values()))

    def _channel(self, address: Address) -> grpc.aio.Channel:
        channel = self._channels.get(address)
        if channel is None:
            channel = self._channels[address] = open_channel(*address, self._tls)
        return channel

    async def _ask(self, address: Address, method: Callable[..., Any], message: Any, timeout_ms: int) -> Any:
        where = f"{address[0]}:{address[1]}"
        try:
            answer = await method(message, timeout=timeout_ms / 1000)
        except grpc.aio.AioRpcError as error:
            raise LinkError(f"{where}: {await self._reasons.of(error, address)}") from error
        except grpc.aio.UsageError as error:
            raise LinkError(f"{where}: the client was closed") from error
        if answer is None:  # so gRPC hands on what it cannot decode
            raise LinkError(f"{where}: {UNREADABLE}")
        return answer

    def _data(self, address: Address) -> Any:
        return DataStub(self._channel(address))


def _refused(error: meta.Error) -> Referral | ApiError:
    refusal = error_from_pb(error)
    if refusal.code is not ErrorCode.NOT_CONTROLLER:
        return refusal
    leader = leader_from_pb(error)
    return Referral(to=None if leader is None else (leader.host, leader.port), problem=str(refusal))


class _Sent:
    """A request on its way: `done` gets its answer."""

    __slots__ = ("done", "message", "needs_answer", "timer")

    def __init__(self, message: pb.ProduceRequest, done: asyncio.Future[Any], needs_answer: bool) -> None:
        self.message = message
        self.done = done
        self.needs_answer = needs_answer
        self.timer: asyncio.TimerHandle | None = None


class _ProduceStream:
    """Requests in the order of `send`, answers in the same order. Broken once: broken for good. The number
    under way is bounded by the producer (`max_in_flight`)."""

    def __init__(self, address: Address, stub: Any) -> None:
        self.broken = False
        self._address = address
        self._loop = asyncio.get_running_loop()
        self._call = stub.ProduceStream()
        self._unsent: deque[_Sent] = deque()
        self._unanswered: deque[_Sent] = deque()
        self._more = asyncio.Event()
        self._tasks = [self._loop.create_task(each) for each in (self._write(), self._read())]

    def send(self, request: api.ProduceRequest, timeout_ms: int) -> asyncio.Future[Any]:
        one = _Sent(codec.PRODUCE.to_pb(request), self._loop.create_future(), request.acks != api.ACKS_NONE)
        one.timer = self._loop.call_later((timeout_ms + ANSWER_SLACK_MS) / 1000, self._late, one)
        self._unsent.append(one)
        self._more.set()
        return one.done

    async def _write(self) -> None:
        try:
            while True:
                while self._unsent:
                    one = self._unsent.popleft()
                    self._unanswered.append(one)
                    await self._call.write(one.message)
                    if not one.needs_answer:
                        _settle(one, api.ProduceResponse(results=()))
                self._more.clear()
                await self._more.wait()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            self.break_off(_stream_problem(error))

    async def _read(self) -> None:
        try:
            while (answer := await self._call.read()) is not END_OF_STREAM:
                if answer is None:
                    self.break_off(UNREADABLE)
                    return
                if not self._unanswered:
                    self.break_off("it sent more answers than there were requests")
                    return
                _settle(self._unanswered.popleft(), codec.PRODUCED.answer_from_pb(answer))
            code = await self._call.code()
            self.break_off(f"it ended the stream ({code.name}: {await self._call.details()})")
        except grpc.aio.AioRpcError as error:
            self.break_off(_stream_problem(error))

    def _late(self, one: _Sent) -> None:
        if not one.done.done():
            self.break_off("no answer in time")

    def break_off(self, problem: str) -> None:
        """Ends it; whatever is under way ends with LinkError."""
        if self.broken:
            return
        self.broken = True
        current = asyncio.current_task()
        for task in self._tasks:
            if task is not current:
                task.cancel()
        self._call.cancel()
        pending = [*self._unanswered, *self._unsent]
        self._unanswered.clear()
        self._unsent.clear()
        error = LinkError(f"{self._address[0]}:{self._address[1]}: {problem}")
        for one in pending:
            _settle(one, error)


def _settle(one: _Sent, outcome: Any) -> None:
    if one.timer is not None:
        one.timer.cancel()
    if one.done.done():
        return
    if isinstance(outcome, LinkError):
        one.done.set_exception(outcome)
    else:
        one.done.set_result(outcome)


def _stream_problem(error: BaseException) -> str:
    return status_text(error) if isinstance(error, grpc.aio.AioRpcError) else "the stream is closed"
