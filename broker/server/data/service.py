"""The Data service of a broker: protobuf in, values to the node, protobuf out.

Owns the names of topics (looked up in the newest published image), the order of the answers on a stream, and
how many requests of one stream are under way. Decides nothing about data.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar, cast

import grpc.aio
from google.protobuf.message import Message

from metaquorum.broker.server.data.requests import Answer, DataRequests
from metaquorum.metadata.errors import ApiError
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.requests import data as api
from metaquorum.proto import data_pb2 as pb
from metaquorum.proto.data_pb2_grpc import DataServicer
from metaquorum.runtime.api import data as codec
from metaquorum.runtime.api.codec import MessageCodec
from metaquorum.runtime.api.data import UnknownTopic
from metaquorum.runtime.rpc.channels import END_OF_STREAM

STREAM_IN_FLIGHT_MAX = 64
"""Requests of one stream whose answers are outstanding; the stream is not read on before one is sent."""

P = TypeVar("P", bound=Message)
Answered = TypeVar("Answered", bound=Message)
_Pending = tuple[Answer | ApiError, tuple[UnknownTopic, ...]]


class DataService(DataServicer):
    """See the module. `image` is asked for at each request."""

    def __init__(self, requests: DataRequests, image: Callable[[], MetadataImage]) -> None:
        self._requests = requests
        self._image = image

    def _topic_id(self, name: str) -> bytes | None:
        topic = self._image().topics.topic_named(name)
        return None if topic is None else topic.topic_id

    # ---- records

    async def Produce(self, request: pb.ProduceRequest, context: Any) -> pb.ProduceResponse:
        return await self._produced(self._begin_produce(request))

    async def ProduceStream(self, request_iterator: Any, context: Any) -> None:  # type: ignore[override]
        """Requests are begun as they come; answers leave in the requests' order."""
        pending: asyncio.Queue[_Pending | None] = asyncio.Queue(STREAM_IN_FLIGHT_MAX)
        reader = asyncio.get_running_loop().create_task(self._read_stream(context, pending))
        try:
            while (each := await pending.get()) is not None:
                await context.write(await self._produced(each))
            await reader
        finally:
            reader.cancel()
            while not pending.empty():
                left = pending.get_nowait()
                if left is not None and not isinstance(left[0], ApiError):
                    left[0].cancel()

    async def _read_stream(self, context: Any, pending: asyncio.Queue[_Pending | None]) -> None:
        try:
            while (request := await context.read()) is not END_OF_STREAM:
                await pending.put(self._begin_produce(request))
        except grpc.aio.AioRpcError:
            pass  # the caller is gone: the handler is cancelled, too
        await pending.put(None)

    def _begin_produce(self, request: pb.ProduceRequest) -> _Pending:
        try:
            asked = codec.request_from_pb(codec.PRODUCE, request, self._topic_id)
        except ApiError as error:
            return error, ()
        return self._requests.begin(asked.request), asked.unknown

    async def _produced(self, pending: _Pending) -> pb.ProduceResponse:
        answer, unknown = pending
        response = answer if isinstance(answer, ApiError) else await answer
        return codec.results_to_pb(codec.PRODUCED, cast("api.ProduceResponse | ApiError", response), unknown)

    async def Fetch(self, request: pb.FetchRequest, context: Any) -> pb.FetchResponse:
        try:
            asked = codec.request_from_pb(codec.FETCH, request, self._topic_id)
        except ApiError as error:
            return codec.FETCHED.answer_to_pb(error)
        response = await self._requests.begin(asked.request)
        return codec.results_to_pb(
            codec.FETCHED, cast("api.FetchResponse | ApiError", response), asked.unknown
        )

    async def ListOffsets(self, request: pb.ListOffsetsRequest, context: Any) -> pb.ListOffsetsResponse:
        try:
            asked = codec.request_from_pb(codec.LIST_OFFSETS, request, self._topic_id)
        except ApiError as error:
            return codec.LISTED_OFFSETS.answer_to_pb(error)
        response = await self._requests.begin(asked.request)
        answer = cast("api.ListOffsetsResponse | ApiError", response)
        return codec.results_to_pb(codec.LISTED_OFFSETS, answer, asked.unknown)

    # ---- the rest

    async def InitProducerId(
        self, request: pb.InitProducerIdRequest, context: Any
    ) -> pb.InitProducerIdResponse:
        return await self._ask(codec.INIT_PRODUCER_ID, request, codec.PRODUCER_ID)

    async def DescribeLogDirs(
        self, request: pb.DescribeLogDirsRequest, context: Any
    ) -> pb.DescribeLogDirsResponse:
        return await self._ask(codec.DESCRIBE_LOG_DIRS, request, codec.LOG_DIRS)

    async def MarkLogDirOffline(
        self, request: pb.MarkLogDirOfflineRequest, context: Any
    ) -> pb.MarkLogDirOfflineResponse:
        return await self._ask(codec.MARK_LOG_DIR_OFFLINE, request, codec.MARKED_LOG_DIR)

    async def _ask(
        self, decode: MessageCodec[Any, P], message: P, encode: MessageCodec[Any, Answered]
    ) -> Answered:
        try:
            request: api.DataRequest = decode.from_pb(message)
        except ApiError as error:
            return encode.answer_to_pb(error)
        return encode.answer_to_pb(await self._requests.begin(request))
