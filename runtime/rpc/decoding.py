"""Refuses malformed requests and callers without rights, for every service, with one line at both ends.

Owns only that: gRPC itself would respond with a Python error and log a traceback. Does not decide who may
call (`rights`), and does not validate a decoded request.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import unquote

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

Admission = Callable[[str, Any], str | None]
"""Returns why the call (method, context) is refused, or None."""
_log = logging.getLogger(__name__)


class GuardedServer(grpc.aio.Server):
    """A gRPC server whose services refuse malformed requests; `channels.new_server` creates every server of
    metaquorum.

    Methods are found by name here and not registered with gRPC's core, because that slows every call of the
    server: before each, gRPC's Python layer waits for one future per registered method.
    """

    def __init__(self, server: grpc.aio.Server) -> None:
        self._server = server
        self._methods = _Methods()
        server.add_generic_rpc_handlers((self._methods,))

    def add_generic_rpc_handlers(
        self, generic_rpc_handlers: Iterable[grpc.GenericRpcHandler[Any, Any]]
    ) -> None:
        """Adds services; `add_*_to_server` calls it."""
        self._methods.services += generic_rpc_handlers

    def admit_by(self, admission: Admission | None) -> None:
        """Sets the check for every call; None: no check. Call it before `start`."""
        self._methods.admission = admission

    def note_callers(self, note: Callable[[Any], None]) -> None:
        """Sets a function that is called with the context of every admitted call, in its task. Call it before
        `start`."""
        self._methods.note_caller = note

    def add_registered_method_handlers(self, service_name: str, method_handlers: Any) -> None:
        """Does nothing: the generated code calls it with the methods of a service that it has already
        added."""

    def add_insecure_port(self, address: str) -> int:
        return self._server.add_insecure_port(address)

    def add_secure_port(self, address: str, server_credentials: grpc.ServerCredentials) -> int:
        return self._server.add_secure_port(address, server_credentials)

    async def start(self) -> None:
        await self._server.start()

    async def stop(self, grace: float | None = None) -> None:
        await self._server.stop(grace)

    async def wait_for_termination(self, timeout: float | None = None) -> bool:  # noqa: ASYNC109
        return await self._server.wait_for_termination(timeout)


class _Methods(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    """The methods of all services; each is wrapped at its first call."""

    def __init__(self) -> None:
        self.services: list[grpc.GenericRpcHandler[Any, Any]] = []
        self.admission: Admission | None = None
        self.note_caller: Callable[[Any], None] | None = None
        self._handlers: dict[str, Any] = {}

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        method = handler_call_details.method
        found = self._handlers.get(method)
        if found is not None:
            return found
        for service in self.services:
            handler = service.service(handler_call_details)
            if handler is not None:
                found = self._handlers[method] = _guarded(handler, method, self.admission, self.note_caller)
                return found
        return None


def _guarded(
    handler: Any, method: str, admission: Admission | None, note_caller: Callable[[Any], None] | None
) -> Any:
    decode = handler.request_deserializer

    async def admit(context: Any) -> None:
        refusal = None if admission is None else admission(method, context)
        if refusal is not None:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, refusal)
        if note_caller is not None:
            note_caller(context)

    if handler.request_streaming:
        behaviour = handler.stream_stream or handler.stream_unary
        if not inspect.iscoroutinefunction(behaviour):
            return handler

        async def streaming(requests: Any, context: Any) -> Any:
            await admit(context)
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
        await admit(context)
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
    """`127.0.0.1:4711` from gRPC's `ipv4:127.0.0.1:4711`."""
    return unquote(peer).removeprefix("ipv4:").removeprefix("ipv6:")
