"""Refuses callers without rights, and requests that are too large or malformed, for every service, with one
line at both ends.

The order: rights, then size, then content. gRPC reads the message of a unary call before it calls the method,
so every method is registered as one that reads a stream, and reads its message once the caller is admitted:
refused callers cost no memory. gRPC itself would also respond to a malformed message with a Python error and
log a traceback.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from urllib.parse import unquote

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from metaquorum.lines import one_line
from metaquorum.network.limits import ConnectionLimits
from metaquorum.network.refused_callers import RefusedCallers
from metaquorum.rpc.arrivals import Arrivals
from metaquorum.rpc.message_limits import message_max_bytes

Admission = Callable[[str, Any], str | None]
"""Returns why the call (method, context) is refused, or None."""
OPEN_TO_ALL = "/grpc.health.v1.Health/"
"""No rights are needed to ask whether a node serves. A node that checks rights does not read the message: the
answer is that to an empty one, about the whole process."""
CANCELLATION_S = 0.2
"""How long to wait for a call's cancellation: gRPC says first that the call has no message, which a caller
that cancels did not send yet."""
_log = logging.getLogger(__name__)


class GuardedServer(grpc.aio.Server):
    """A gRPC server whose services refuse malformed requests; `channels.new_server` creates every server of
    metaquorum.

    Methods are found by name here and not registered with gRPC's core, because that slows every call of the
    server: before each, gRPC's Python layer waits for one future per registered method.
    """

    def __init__(self, server: grpc.aio.Server, limits: ConnectionLimits | None = None) -> None:
        """`limits`: of the connections to its ports; None: there are none."""
        self._server = server
        self._limits = limits
        self._arrivals: list[Arrivals] = []
        self._is_started = False
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

    def listens(self, name: str, port: int) -> None:
        """The server has a port, whose connections are to be within the limits."""
        if self._limits is not None:
            self._arrivals.append(Arrivals(port, name=name, limits=self._limits, refused=RefusedCallers()))
            self._methods.arrivals = tuple(self._arrivals)

    async def start(self) -> None:
        self._is_started = True
        await self._server.start()
        for each in self._arrivals:
            each.open()

    async def stop(self, grace: float | None = None) -> None:
        for each in self._arrivals:
            each.close()
        if not self._is_started:
            # gRPC keeps the ports of a server that was never started for as long as the process lives.
            self._is_started = True
            await self._server.start()
        await self._server.stop(grace)

    async def wait_for_termination(self, timeout: float | None = None) -> bool:  # noqa: ASYNC109
        return await self._server.wait_for_termination(timeout)


async def _message(context: Any) -> Any:
    """The call's message. No frame of the call itself holds it, so that a refused one leaves no memory."""
    message = await context.read()
    if not isinstance(message, bytes):
        await asyncio.sleep(CANCELLATION_S)  # ends here if the caller had cancelled the call
    return message


class _Methods(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    """The methods of all services; each is wrapped at its first call."""

    def __init__(self) -> None:
        self.services: list[grpc.GenericRpcHandler[Any, Any]] = []
        self.admission: Admission | None = None
        self.note_caller: Callable[[Any], None] | None = None
        self.arrivals: Sequence[Arrivals] = ()
        self._handlers: dict[str, Any] = {}

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        method = handler_call_details.method
        guarded = self._handlers.get(method)
        if guarded is not None:
            return guarded
        for service in self.services:
            handler = service.service(handler_call_details)
            behaviour = None if handler is None else _behaviour_of(handler)
            if inspect.iscoroutinefunction(behaviour):
                guarded = self._handlers[method] = self._guarded(handler, behaviour, method)
                return guarded
        return None  # gRPC responds that there is no such method; so, too, if the service does not define it

    def _guarded(self, handler: Any, behaviour: Any, method: str) -> Any:
        admission, note_caller, arrivals = self.admission, self.note_caller, self.arrivals
        request_of = _Decoding(method, handler.request_deserializer)
        is_unread = admission is not None and method.startswith(OPEN_TO_ALL)

        async def guarded(requests: Any, context: Any) -> Any:
            refusal = None if admission is None or is_unread else admission(method, context)
            if refusal is not None:
                await context.abort(grpc.StatusCode.PERMISSION_DENIED, refusal)
            for each in arrivals:
                each.known(context.peer())
            if note_caller is not None:
                note_caller(context)
            refused = None
            try:
                if not handler.request_streaming:
                    requests = request_of(b"" if is_unread else await _message(context))
                return await behaviour(requests, context)
            except RefusedMessage as error:
                refused = error.status, str(error)
            # After `except`: the traceback would keep the message in memory.
            _log.warning("%s was refused: %s", peer_text(context.peer()), refused[1])
            return await context.abort(*refused)

        make = (
            grpc.stream_stream_rpc_method_handler
            if handler.response_streaming
            else grpc.stream_unary_rpc_method_handler
        )
        decode = request_of if handler.request_streaming else None
        return make(guarded, decode, handler.response_serializer)


def _behaviour_of(handler: Any) -> Any:
    return handler.stream_stream or handler.stream_unary or handler.unary_stream or handler.unary_unary


class RefusedMessage(Exception):
    """A message that is too large for its method, or is none of it. Holds no part of it."""

    def __init__(self, status: grpc.StatusCode, text: str) -> None:
        super().__init__(text)
        self.status = status


class _Decoding:
    """Makes a request of the bytes of a message. Raises RefusedMessage."""

    def __init__(self, method: str, decode: Callable[[bytes], Any] | None) -> None:
        self._name = method.removeprefix("/")
        self._decode = decode
        self._max_bytes = message_max_bytes(method)

    def __call__(self, message: Any) -> Any:
        if not isinstance(message, bytes):
            raise RefusedMessage(grpc.StatusCode.INVALID_ARGUMENT, f"a call of {self._name} has no message")
        if len(message) > self._max_bytes:
            raise RefusedMessage(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"a message of {len(message)} bytes is larger than {self._name} takes ({self._max_bytes})",
            )
        if self._decode is None:
            return message
        try:
            return self._decode(message)
        except DecodeError as error:
            text = f"this is not a request of {self._name}: {one_line(error)}"
        raise RefusedMessage(grpc.StatusCode.INVALID_ARGUMENT, text)


def peer_text(peer: str) -> str:
    """`127.0.0.1:4711` from gRPC's `ipv4:127.0.0.1:4711`."""
    return unquote(peer).removeprefix("ipv4:").removeprefix("ipv6:")
