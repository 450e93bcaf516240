"""Requests that are none: refused in one line at both ends, whatever service they were meant for.

Owns only that. gRPC itself would answer with a Python error and leave a traceback in the log.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import unquote

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

_log = logging.getLogger(__name__)


class RefuseUndecodable(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Of every server that `channels.new_server` makes."""

    def __init__(self) -> None:
        self._handlers: dict[str, Any] = {}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any]]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """The method's handler with its requests decoded under our eyes; made once for each method."""
        method = handler_call_details.method
        found = self._handlers.get(method)
        if found is None:
            handler = await continuation(handler_call_details)
            if handler is None:
                return handler
            found = self._handlers[method] = _guarded(handler, method)
        return found


def _guarded(handler: Any, method: str) -> Any:
    decode = handler.request_deserializer
    if handler.request_streaming:
        behaviour = handler.stream_stream or handler.stream_unary
        if not inspect.iscoroutinefunction(behaviour):
            return handler

        async def streaming(requests: Any, context: Any) -> Any:
            try:
                return await behaviour(requests, context)
            except DecodeError as error:
                return await _refuse(error, method, context)

        make = (
            grpc.stream_stream_rpc_method_handler
            if handler.response_streaming
            else grpc.stream_unary_rpc_method_handler
        )
        return make(streaming, decode, handler.response_serializer)
    behaviour = handler.unary_stream or handler.unary_unary
    if decode is None or not inspect.iscoroutinefunction(behaviour):
        return handler

    async def single(raw: bytes, context: Any) -> Any:
        try:
            request = decode(raw)
        except DecodeError as error:
            return await _refuse(error, method, context)
        return await behaviour(request, context)

    make = (
        grpc.unary_stream_rpc_method_handler
        if handler.response_streaming
        else grpc.unary_unary_rpc_method_handler
    )
    return make(single, None, handler.response_serializer)


async def _refuse(error: DecodeError, method: str, context: Any) -> None:
    text = f"this is not a request of {method.removeprefix('/')}: {' '.join(str(error).split())}"
    _log.warning("%s was refused: %s", peer_text(context.peer()), text)
    await context.abort(grpc.StatusCode.INVALID_ARGUMENT, text)


def peer_text(peer: str) -> str:
    """`127.0.0.1:4711` of gRPC's `ipv4:127.0.0.1:4711`."""
    return unquote(peer).removeprefix("ipv4:").removeprefix("ipv6:")
