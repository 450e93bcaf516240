"""Listeners of Kafka's protocol: the sockets, TLS, and the open connections.

Everything is bound before anything is served.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import cast

from metaquorum.config.addresses import Listener
from metaquorum.config.node import NodeConfig
from metaquorum.errors import cannot_listen
from metaquorum.listeners.connection import ClientConnection, ConnectionConfig
from metaquorum.listeners.login_rules import LoginRules
from metaquorum.listeners.long_work import LongRequests
from metaquorum.listeners.quotas import Quotas
from metaquorum.listeners.request_memory import RequestMemory
from metaquorum.listeners.response_memory import Unsent
from metaquorum.listeners.services import Client, Services
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.requests.rates import QuotaWindows
from metaquorum.metadata.settings.keys import MAX_INT
from metaquorum.network.acceptor import Acceptor, OnAccepted
from metaquorum.network.files_plan import addresses_of, new_max
from metaquorum.network.limits import ConnectionLimits, ConnectionSlot, CreationRate
from metaquorum.network.refused_callers import RefusedCallers
from metaquorum.network.tls import ABORTED, LastWords, NodeTls, problem_of
from metaquorum.node.machine import OWN_PROCESS, Machine
from metaquorum.node.scheduler import StepEnd
from metaquorum.platforms import may_bind_again

LOGIN_BYTES = 8 * 1024 * 1024
"""The memory for frames of all connections before their login, besides two of the longest ones."""
CLOSE_GRACE_S = 0.1
"""How long responses may take to leave after the listeners have closed."""


class KafkaListeners:
    """All listeners of one role for Kafka's protocol. `tls` None: none of them has TLS. `files_max`: the most
    connections that the limit of open files leaves; None: the share of clients."""

    def __init__(
        self,
        config: NodeConfig,
        tls: NodeTls | None,
        machine: Machine = OWN_PROCESS,
        files_max: int | None = None,
    ) -> None:
        files_max = machine.shares.clients if files_max is None else files_max
        self._config = config
        self._clock = machine.clock
        self._limits = ConnectionLimits(
            max_connections=config.number("max.connections"),
            max_per_ip=config.number("max.connections.per.ip"),
            overrides=addresses_of(config.overrides()),
            protected=_protected(config),
            by_listener={
                name: access.max_connections
                for name, access in config.access.items()
                if access.max_connections is not None
            },
            files_max=files_max,
            new_max=new_max(config, min(files_max, config.number("max.connections"))),
        )
        rate = config.number("max.connection.creation.rate")
        self._rate = None if rate == MAX_INT else CreationRate(rate)
        self._contexts = [
            None if material is None else material.server_context(config.access[listener.name].client_auth)
            for listener in config.kafka_listeners
            for material in [None if tls is None else tls.of(listener.name)]
        ]
        token_key = cast("str | None", config.values["delegation.token.secret.key"])
        self._logins = LoginRules(dict(config.access), token_key)
        self._sockets: list[socket.socket] = []
        self._acceptors: list[Acceptor] = []
        self._long = LongRequests()
        self._refused = RefusedCallers()
        self.unsent = Unsent(config.bound("queued.max.response.bytes"))
        self._connections: set[ClientConnection] = set()
        longest = max((each.max_receive_bytes for each in config.access.values()), default=0)
        self._login_memory = RequestMemory(LOGIN_BYTES + 2 * longest, longest)

    def __len__(self) -> int:
        """Number of open connections."""
        return len(self._connections)

    def bind(self) -> None:
        """Binds every address, without accepting connections yet. Raises StartError, in one line."""
        for listener in self._config.kafka_listeners:
            try:
                self._sockets.append(_bound(listener.host, listener.port))
            except OSError as error:
                where = f"{listener.host or '*'}:{listener.port}"
                raise cannot_listen(where, error, "`listeners`") from error

    async def start(
        self, services: Services, image: Callable[[], MetadataImage], step_end: StepEnd | None = None
    ) -> None:
        """Starts accepting connections. `image` has the credentials; `step_end` is that of the driver whose
        steps produce the responses."""
        step_end = step_end or StepEnd()
        number = self._config.number
        windows = QuotaWindows(
            count=number("quota.window.num"), window_ms=1_000 * number("quota.window.size.seconds")
        )
        quotas = Quotas(image, windows)
        places = zip(self._config.kafka_listeners, self._sockets, self._contexts, strict=True)
        for listener, bound, context in places:
            settings = self._connection_config(listener, image, quotas, step_end)
            make = partial(self._connection, settings, services)
            if context is None:
                accepted: OnAccepted = partial(_serve_plain, make)
            else:
                accepted = TlsHandshakes(
                    context,
                    make,
                    listener=listener.name,
                    timeout_s=settings.login_timeout_s,
                    refused=self._refused,
                ).handshake
            acceptor = self._acceptor(listener, bound, accepted)
            acceptor.open(number("socket.listen.backlog.size"))
            self._acceptors.append(acceptor)

    def _connection(
        self, settings: ConnectionConfig, services: Services, slot: ConnectionSlot
    ) -> ClientConnection:
        return ClientConnection(settings, services, slot, self._begun, self._connections.discard)

    def _acceptor(self, listener: Listener, bound: socket.socket, accepted: OnAccepted) -> Acceptor:
        """As in Kafka, the brokers' listener is only delayed by a rate of its own."""
        own = self._config.access[listener.name].creation_rate
        rates = [] if own is None else [CreationRate(own)]
        if self._rate is not None and self._limits.may_end(listener.name):
            rates.append(self._rate)
        return Acceptor(
            bound, accepted, name=listener.name, limits=self._limits, refused=self._refused, rates=rates
        )

    def _begun(self, connection: ClientConnection) -> None:
        self._connections.add(connection)
        if self._limits.is_exceeded:
            others = [each for each in self._connections if self._limits.may_end(each.listener)]
            if others:
                least = min(others, key=lambda each: each.used_s)
                least.cut_off("it was replaced by a broker's connection (max.connections)")

    def _connection_config(
        self, listener: Listener, image: Callable[[], MetadataImage], quotas: Quotas, step_end: StepEnd
    ) -> ConnectionConfig:
        number = self._config.number
        idle_ms = number("connections.max.idle.ms")
        return ConnectionConfig(
            listener=listener.name,
            clock=self._clock,
            request_max_bytes=number("socket.request.max.bytes"),
            max_idle_s=math.inf if idle_ms == -1 else idle_ms / 1000,
            quotas=quotas,
            rules=self._logins.rules(listener.name, image),
            memory=RequestMemory(
                self._config.bound("queued.max.request.bytes"), number("socket.request.max.bytes")
            ),
            unsent=self.unsent,
            login_memory=self._login_memory,
            refused=self._refused,
            login_max_bytes=self._config.access[listener.name].max_receive_bytes,
            login_timeout_s=number("connection.authentication.timeout.ms") / 1000,
            failed_login_delay_s=number("connection.failed.authentication.delay.ms") / 1000,
            step_end=step_end,
            long=self._long,
        )

    def end_those(self, matches: Callable[[Client], bool]) -> int:
        """Ends the connections of some clients at once; returns how many."""
        found = [each for each in self._connections if matches(each.client)]
        for connection in found:
            connection.cut_off(None)
        return len(found)

    async def close(self, *, at_once: bool = False) -> None:
        """Stops accepting, lets finished responses leave unless `at_once`, and closes every connection."""
        for acceptor in self._acceptors:
            acceptor.close()
        for bound in self._sockets:
            bound.close()
        if any(map(len, self._connections)) and not at_once:
            await asyncio.sleep(CLOSE_GRACE_S)
        for connection in list(self._connections):
            if at_once:
                connection.cut_off(None)
            else:
                connection.end()


async def _serve_plain(
    make: Callable[[ConnectionSlot], ClientConnection],
    client: socket.socket,
    peer: str,
    slot: ConnectionSlot,
) -> None:
    """Lets a connection in without TLS."""
    try:
        await asyncio.get_running_loop().connect_accepted_socket(lambda: make(slot), client)
    except (OSError, asyncio.CancelledError):
        client.close()
        slot.leave()
        raise


def _protected(config: NodeConfig) -> str | None:
    """The brokers' listener, if it is not the only one."""
    followed = config.inter_broker_listener
    return None if followed is None or len(config.kafka_listeners) == 1 else followed.name


def _bound(host: str, port: int) -> socket.socket:
    """A socket bound to an address; an empty host means every interface, IPv6 and IPv4. Raises OSError."""
    if host:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = addresses[0]
    elif socket.has_dualstack_ipv6():
        family, address = socket.AF_INET6, ("::", port)
    else:
        family, address = socket.AF_INET, ("", port)
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        may_bind_again(bound)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(bool(host)))
        bound.bind(address)
    except OSError:
        bound.close()
        raise
    return bound


class TlsHandshakes:
    """A handshake makes a connection; a failed one is one line in the log, which asyncio's own server does
    not write. `make` returns the protocol of a new connection, which leaves its place. A handshake that takes
    longer than `timeout_s` is aborted."""

    def __init__(
        self,
        context: ssl.SSLContext,
        make: Callable[[ConnectionSlot], asyncio.BaseProtocol],
        *,
        listener: str,
        timeout_s: float,
        refused: RefusedCallers,
    ) -> None:
        self._context = context
        self._make = make
        self._listener = listener
        self._timeout_s = timeout_s
        self._refused = refused
        self._loop = asyncio.get_running_loop()

    async def handshake(self, client: socket.socket, peer: str, slot: ConnectionSlot) -> None:
        """See `acceptor.OnAccepted`."""
        last_words = LastWords(client)
        try:
            async with asyncio.timeout(self._timeout_s):
                if not await self._says_something(client):
                    self._drop(client, slot)  # a check whether the port is open
                    return
                await self._loop.connect_accepted_socket(
                    lambda: self._make(slot),
                    client,
                    ssl=self._context,
                    ssl_handshake_timeout=self._timeout_s,
                )
        except ssl.SSLError as error:
            slot.leave()
            self._log_failure(peer, problem_of(error))
            await last_words.say()
        except (ConnectionAbortedError, TimeoutError):
            self._drop(client, slot)
            self._log_failure(peer, f"it did not end within {self._timeout_s:g} s")
        except OSError:
            self._drop(client, slot)
            self._log_failure(peer, ABORTED)
        except asyncio.CancelledError:
            self._drop(client, slot)
            raise
        finally:
            last_words.drop()

    @staticmethod
    def _drop(client: socket.socket, slot: ConnectionSlot) -> None:
        client.close()
        slot.leave()

    async def _says_something(self, client: socket.socket) -> bool:
        """True if bytes arrive rather than the end or a reset of the connection."""
        readable = asyncio.Event()
        self._loop.add_reader(client, readable.set)
        try:
            await readable.wait()
        finally:
            self._loop.remove_reader(client)
        with contextlib.suppress(OSError):
            return client.recv(1, socket.MSG_PEEK) != b""
        return False

    def _log_failure(self, peer: str, problem: str) -> None:
        where = f"TLS handshake with {{peer}} at listener {self._listener}"
        self._refused.log(peer, f"{where} failed: {problem}")
