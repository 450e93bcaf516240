"""Listeners of Kafka's protocol: the sockets, TLS, and the open connections.

Owns binding before anything is served, and closing in order. Knows no request: `services` has the APIs.
"""

from __future__ import annotations

import asyncio
import math
import socket
from collections.abc import Callable
from functools import partial
from typing import cast

from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.requests.rates import QuotaWindows
from metaquorum.runtime.config.addresses import Listener
from metaquorum.runtime.config.node import NodeConfig
from metaquorum.runtime.driver.step_end import StepEnd
from metaquorum.runtime.errors import StartError
from metaquorum.runtime.kafka.auth.rules import LoginRules
from metaquorum.runtime.kafka.bounds.limits import ConnectionLimits
from metaquorum.runtime.kafka.bounds.memory import RequestMemory
from metaquorum.runtime.kafka.bounds.unsent import Unsent
from metaquorum.runtime.kafka.connection import ClientConnection
from metaquorum.runtime.kafka.connection_config import ConnectionConfig
from metaquorum.runtime.kafka.quotas import Quotas
from metaquorum.runtime.kafka.services import Services
from metaquorum.runtime.kafka.tls_acceptor import TlsAcceptor
from metaquorum.runtime.rpc.refused_callers import RefusedCallers
from metaquorum.runtime.tls.material import TlsMaterial

CLOSE_GRACE_S = 0.1
"""How long responses may take to leave after the listeners have closed."""


class KafkaListeners:
    """All listeners of a broker for Kafka's protocol."""

    def __init__(self, config: NodeConfig, tls: TlsMaterial | None) -> None:
        self._config = config
        self._limits = ConnectionLimits(
            max_connections=config.number("max.connections"),
            max_per_ip=config.number("max.connections.per.ip"),
            protected=_protected(config),
            by_listener={
                name: each.max_connections
                for name, each in config.access.items()
                if each.max_connections is not None
            },
        )
        self._contexts = [
            tls.server_context(config.access[each.name].client_auth)
            if each.is_tls and tls is not None
            else None
            for each in config.kafka_listeners
        ]
        token_key = cast("str | None", config.values["delegation.token.secret.key"]) or None
        self._logins = LoginRules(dict(config.access), token_key)
        self._sockets: list[socket.socket] = []
        self._servers: list[asyncio.Server | TlsAcceptor] = []
        self._refused = RefusedCallers()
        self.unsent = Unsent(config.bound("queued.max.response.bytes"))
        self._connections: set[ClientConnection] = set()

    def __len__(self) -> int:
        """Number of open connections."""
        return len(self._connections)

    def bind(self) -> None:
        """Binds every address, without accepting connections yet. Raises StartError, in one line."""
        for listener in self._config.kafka_listeners:
            try:
                self._sockets.append(_bound(listener.host, listener.port))
            except OSError as error:
                raise StartError(
                    f"cannot listen on {listener.host or '*'}:{listener.port}: {error.strerror or error}; "
                    "choose another address in `listeners`"
                ) from error

    async def start(
        self, services: Services, image: Callable[[], MetadataImage], step_end: StepEnd | None = None
    ) -> None:
        """Starts accepting connections. `image` has the credentials; `step_end` is that of the driver whose
        steps produce the responses."""
        step_end = step_end or StepEnd()
        loop = asyncio.get_running_loop()
        number = self._config.number
        windows = QuotaWindows(
            count=number("quota.window.num"), window_ms=1_000 * number("quota.window.size.seconds")
        )
        quotas = Quotas(image, windows)
        places = zip(self._config.kafka_listeners, self._sockets, self._contexts, strict=True)
        for listener, bound, context in places:
            make = partial(
                ClientConnection,
                self._connection_config(listener, image, quotas, step_end),
                services,
                self._limits,
                self._begun,
                self._connections.discard,
            )
            backlog = number("socket.listen.backlog.size")
            if context is None:
                self._servers.append(await loop.create_server(make, sock=bound, backlog=backlog))
                continue
            timeout_s = number("connection.authentication.timeout.ms") / 1000
            door = TlsAcceptor(
                bound, context, make, listener=listener.name, timeout_s=timeout_s, refused=self._refused
            )
            door.open(backlog)
            self._servers.append(door)

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
            request_max_bytes=number("socket.request.max.bytes"),
            max_idle_s=math.inf if idle_ms == -1 else idle_ms / 1000,
            quotas=quotas,
            rules=self._logins.rules(listener.name, image),
            memory=RequestMemory(
                self._config.bound("queued.max.request.bytes"), number("socket.request.max.bytes")
            ),
            unsent=self.unsent,
            login_max_bytes=self._config.access[listener.name].max_receive_bytes,
            login_timeout_s=number("connection.authentication.timeout.ms") / 1000,
            failed_login_delay_s=number("connection.failed.authentication.delay.ms") / 1000,
            step_end=step_end,
        )

    async def close(self) -> None:
        """Stops accepting, lets finished responses leave, and closes every connection."""
        for server in self._servers:
            server.close()
        for bound in self._sockets:
            bound.close()
        if any(map(len, self._connections)):
            await asyncio.sleep(CLOSE_GRACE_S)
        for connection in list(self._connections):
            connection.end()


def _protected(config: NodeConfig) -> str | None:
    """The brokers' listener, if it is not the only one."""
    followed = config.inter_broker_listener
    return None if followed is None or len(config.kafka_listeners) == 1 else followed.name


def _bound(host: str, port: int) -> socket.socket:
    """A socket bound to an address; an empty host means every interface, IPv6 and IPv4. Raises OSError."""
    if host:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = found[0]
    elif socket.has_dualstack_ipv6():
        family, address = socket.AF_INET6, ("::", port)
    else:
        family, address = socket.AF_INET, ("", port)
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(bool(host)))
        bound.bind(address)
    except OSError:
        bound.close()
        raise
    return bound
