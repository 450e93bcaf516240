"""A gRPC server that bounds its connections, its calls and the size of their messages."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import os
import socket
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple
from urllib.parse import unquote

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from metaquorum.lines import one_line
from metaquorum.metadata.text.addresses import plain_host
from metaquorum.network.limits import ConnectionLimits, ConnectionSlot
from metaquorum.network.refused_callers import RefusedCallers
from metaquorum.platforms import folder_of_descriptors, keep_silent_ones_away
from metaquorum.storage.disk.descriptors import DESCRIPTORS

# How large one message to a gRPC server may be, by method.

_MIB = 1024 * 1024

MAX_MESSAGE_BYTES = 64 * _MIB
"""A request of a client in Kafka's protocol that a broker forwards; responses, too, have this limit."""
LISTS_MAX_BYTES = 8 * _MIB
"""Requests about many partitions."""
USUAL_MAX_BYTES = 1 * _MIB

LIMITS: dict[str, int] = {
    "Forwarding/Forward": MAX_MESSAGE_BYTES,
    "Partitions/AlterPartition": LISTS_MAX_BYTES,
    "Partitions/AssignReplicasToDirs": LISTS_MAX_BYTES,
}
"""By service and method; USUAL_MAX_BYTES for all others."""


def message_max_bytes(method: str) -> int:
    """The most bytes of one request of `method` (/metaquorum.v1.SERVICE/METHOD)."""
    return LIMITS.get(method.rpartition(".")[2], USUAL_MAX_BYTES)


# Bounds the connections of a gRPC port, although gRPC accepts them by itself.
#
# gRPC does not tell what it accepts and has no bound for it. So the port's queue is watched: soon after a
# connection has arrived, the descriptors of the process are looked through for sockets of this port. Where
# the kernel can (Linux), a connection that sends nothing does not even arrive. What has sent bytes but made
# no admitted call is new in the sense of `sockets.limits`.

SOON_S = 0.02
"""How long after an arrival the connections are counted."""
SILENT_S = 5
"""How long the kernel keeps a connection that sends nothing before it arrives all the same (Linux)."""

Identity = tuple[int, int]
"""A descriptor's number, and that of its socket."""


class _Arrival(NamedTuple):
    """A connection that is not counted yet; older ones have lower inodes. `where`: HOST:PORT, `peer`: that
    in gRPC's form."""

    inode: int
    descriptor: int
    address: str
    where: str
    peer: str


class Arrivals:
    """See the module. Call `open` once gRPC listens on the port."""

    def __init__(self, port: int, *, name: str, limits: ConnectionLimits, refused: RefusedCallers) -> None:
        self._port, self._name = port, name
        self._limits, self._refused = limits, refused
        self._folder = folder_of_descriptors()
        self._listening: socket.socket | None = None
        self._places: dict[Identity, tuple[ConnectionSlot, str]] = {}
        self._others: set[Identity] = set()
        self._proven_peers: set[str] = set()
        self._soon: asyncio.TimerHandle | None = None

    def open(self) -> None:
        """Starts watching; does nothing on a system that does not list a process's descriptors."""
        for descriptor, _ in self._sockets():
            own_socket = _socket(descriptor)
            if own_socket is None:
                continue
            if self._is_here(own_socket) and own_socket.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                self._listening = own_socket
                break
            own_socket.close()
        if self._listening is None:
            return
        keep_silent_ones_away(self._listening, SILENT_S)
        self._watch()

    def close(self) -> None:
        """Stops watching; the connections stay."""
        if self._soon is not None:
            self._soon.cancel()
        if self._listening is not None:
            asyncio.get_running_loop().remove_reader(self._listening)
            self._listening.close()
            self._listening = None

    def known(self, peer: str) -> None:
        """A call of this peer, in gRPC's form, was admitted."""
        if peer in self._proven_peers:
            return
        self._proven_peers.add(peer)
        for place, other in self._places.values():
            if other == peer:
                place.known()

    def _watch(self) -> None:
        self._soon = None
        if self._listening is not None:
            asyncio.get_running_loop().add_reader(self._listening, self._arrived)

    def _arrived(self) -> None:
        loop = asyncio.get_running_loop()
        if self._listening is not None and self._soon is None:
            loop.remove_reader(self._listening)
            self._soon = loop.call_later(SOON_S, self._count)

    def _count(self) -> None:
        """Admits what is new among the process's sockets, and forgets what is gone."""
        try:
            present = dict(self._sockets())
        except OSError:
            present = {}
        if present:
            seen = set(present.items())
            for gone in self._places.keys() - seen:
                self._places.pop(gone)[0].leave()
            self._others &= seen
            arrived = [self._arrival(each) for each in seen - self._places.keys() - self._others]
            for each in sorted(
                filter(None, arrived), key=lambda each: (each.peer not in self._proven_peers, each)
            ):
                self._admit(each)
            self._proven_peers &= {peer for _, peer in self._places.values()}
        DESCRIPTORS.refill()
        self._watch()

    def _arrival(self, identity: Identity) -> _Arrival | None:
        own_socket = _socket(identity[0])
        if own_socket is None:
            return None
        with own_socket:
            peer = self._peer(own_socket)
        if peer is None:
            self._others.add(identity)
            return None
        address, where, text = peer
        return _Arrival(identity[1], identity[0], address, where, text)

    def _admit(self, arrival: _Arrival) -> None:
        slot = self._limits.admit(self._name, arrival.address)
        if isinstance(slot, str):
            self._end(arrival.descriptor, arrival.peer)
            self._refused.log(arrival.where, f"closed the connection of {{peer}} to {self._name}: {slot}")
            return
        slot.end = lambda _: self._end(arrival.descriptor, arrival.peer)
        if arrival.peer in self._proven_peers:
            slot.known()
        self._places[arrival.descriptor, arrival.inode] = slot, arrival.peer

    def _end(self, descriptor: int, text: str) -> None:
        """Ends a connection, if the descriptor is still its."""
        own_socket = _socket(descriptor)
        if own_socket is not None:
            with own_socket:
                peer = self._peer(own_socket)
                if peer is not None and peer[2] == text:
                    with contextlib.suppress(OSError):
                        own_socket.shutdown(socket.SHUT_RDWR)

    def _is_here(self, candidate: socket.socket) -> bool:
        inet = candidate.family in (socket.AF_INET, socket.AF_INET6) and candidate.type == socket.SOCK_STREAM
        return inet and candidate.getsockname()[1] == self._port

    def _peer(self, candidate: socket.socket) -> tuple[str, str, str] | None:
        """(address, HOST:PORT, gRPC's form) of a connection to this port; None for any other socket."""
        with contextlib.suppress(OSError):
            if self._is_here(candidate):
                host, port = candidate.getpeername()[:2]
                plain = plain_host(host)
                if ":" in plain:
                    return plain, f"[{plain}]:{port}", f"ipv6:%5B{plain}%5D:{port}"
                return plain, f"{plain}:{port}", f"ipv4:{plain}:{port}"
        return None

    def _sockets(self) -> Iterator[Identity]:
        folder = self._folder
        if folder is None:
            return
        for name in DESCRIPTORS.use(lambda: os.listdir(folder)):
            with contextlib.suppress(OSError, ValueError):
                found = os.fstat(int(name))
                if stat.S_ISSOCK(found.st_mode):
                    yield int(name), found.st_ino


def _socket(descriptor: int) -> socket.socket | None:
    """A socket object of its own for a descriptor that is another's."""
    copy = -1
    try:
        copy = DESCRIPTORS.use(lambda: os.dup(descriptor))
        return socket.socket(fileno=copy)
    except OSError:
        if copy >= 0:
            os.close(copy)
        return None


# Refuses callers without rights, and requests that are too large or malformed, for every service, with one
# line at both ends.
#
# The order: rights, then size, then content. gRPC reads the message of a unary call before it calls the
# method, so every method is registered as one that reads a stream, and reads its message once the caller is
# admitted: refused callers cost no memory. gRPC itself would also respond to a malformed message with a
# Python error and log a traceback.

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
