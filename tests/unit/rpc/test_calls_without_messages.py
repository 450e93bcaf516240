"""A call whose message never comes: one that its caller cancelled is no fault, any other is refused."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import grpc
import grpc.aio
import pytest

from metaquorum.proto import metadata_pb2 as pb
from metaquorum.proto.metadata_pb2_grpc import MetadataServicer, add_MetadataServicer_to_server
from metaquorum.rpc.channels import new_server, open_channel

NAME = "metaquorum.v1.Metadata/ListBrokers"
TOLD = f"a call of {NAME} has no message"


class Service(MetadataServicer):
    async def ListBrokers(self, request: Any, context: Any) -> pb.ListBrokersResponse:
        return pb.ListBrokersResponse()


async def test_only_a_call_that_is_not_cancelled_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "metaquorum.rpc.server")
    server = new_server()
    add_MetadataServicer_to_server(Service(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    channel = open_channel("127.0.0.1", port, None)
    stream_unary: Any = channel.stream_unary
    open_call = stream_unary(f"/{NAME}")
    try:
        async with asyncio.timeout(20):
            for _ in range(5):
                cancelled = open_call()
                await asyncio.sleep(0.02)
                cancelled.cancel()
            empty = open_call()
            await empty.done_writing()
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await empty
    finally:
        await channel.close(None)
        await server.stop(None)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 1 and told[0].endswith(TOLD), told
