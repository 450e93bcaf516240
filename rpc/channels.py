"""gRPC channels and servers with the settings of every process: limits, keepalive, TLS, no proxies."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Final

import grpc
import grpc.aio
from grpc.aio import EOF  # type: ignore[attr-defined]

from metaquorum.errors import StartError, cannot_listen
from metaquorum.metadata.text.addresses import address_text
from metaquorum.network.limits import ConnectionLimits
from metaquorum.network.tls import TlsMaterial
from metaquorum.platforms import may_bind_again
from metaquorum.rpc.server import MAX_MESSAGE_BYTES, GuardedServer

Route = Callable[[str, int], tuple[str, int]]
"""Where a node connects to reach a host and port."""

END_OF_STREAM: Final[object] = EOF
"""The value that `read` of a stream returns at its end."""

_EVERYWHERE = "::"

SERVER_HANDSHAKE_MS = 10_000
"""The time limit of a new connection for TLS and the first HTTP/2 frames."""

_COMMON_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.max_frame_size", 16_777_215),
)
_CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    *_COMMON_OPTIONS,
    ("grpc.http2.lookahead_bytes", 4 * 1024 * 1024),
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", 20),
    # Timeout of one attempt to connect, including the handshake; a busy machine needs this long.
    ("grpc.min_reconnect_backoff_ms", 3_000),
    ("grpc.max_reconnect_backoff_ms", 200),
    # The backoff of one channel must not delay another channel to the same address.
    ("grpc.use_local_subchannel_pool", 1),
)
UNREAD_BYTES = 64 * 1024
"""How much of a message a server receives before the method reads it: a refused caller costs no more."""
CALLS_PER_CONNECTION_MAX = 1_000
_SERVER_OPTIONS: tuple[tuple[str, int], ...] = (
    *_COMMON_OPTIONS,
    ("grpc.http2.lookahead_bytes", UNREAD_BYTES),
    # Otherwise gRPC raises that limit by itself, up to 8 MiB.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.max_concurrent_streams", CALLS_PER_CONNECTION_MAX),
    # No node compresses, and a small compressed message can become a large one.
    ("grpc.compression_enabled_algorithms_bitset", 1),
    # Two processes on one port would each get half of the connections, so binding it must fail.
    ("grpc.so_reuseport", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.server_handshake_timeout_ms", SERVER_HANDSHAKE_MS),
)


def direct(host: str, port: int) -> tuple[str, int]:
    """The `Route` of a node of its own process: the address itself."""
    return host, port


def open_channel(
    host: str, port: int, tls: TlsMaterial | None, *, message_max_bytes: int = MAX_MESSAGE_BYTES
) -> grpc.aio.Channel:
    """A channel to one address; it connects at the first call."""
    target = address_text(host, port)
    options = (*_CHANNEL_OPTIONS, *_message_options(message_max_bytes))
    if tls is None:
        return grpc.aio.insecure_channel(target, options=options)
    return grpc.aio.secure_channel(target, tls.channel_credentials(), options=options)


def new_server(
    *, message_max_bytes: int = MAX_MESSAGE_BYTES, limits: ConnectionLimits | None = None
) -> GuardedServer:
    """A server without services; call `bind` before files are changed. `limits`: of its connections."""
    options = (*_SERVER_OPTIONS, *_message_options(message_max_bytes))
    return GuardedServer(grpc.aio.server(options=options), limits)


def _message_options(max_bytes: int) -> tuple[tuple[str, int], ...]:
    return (
        ("grpc.max_receive_message_length", max_bytes),
        ("grpc.max_send_message_length", max_bytes),
    )


def bind(server: grpc.aio.Server, host: str, port: int, tls: TlsMaterial | None) -> int:
    """Binds a port (0: any free one) and returns it. An empty `host` means every interface, IPv6 and IPv4
    (gRPC uses IPv4 only if there is no IPv6). Raises StartError, in one line."""
    _check_port_is_free(host, port)
    target = address_text(host or _EVERYWHERE, port)
    try:
        if tls is None:
            bound = server.add_insecure_port(target)
        else:
            bound = server.add_secure_port(target, tls.server_credentials())
    except RuntimeError as error:
        raise StartError(f"cannot listen on {target}: {error}; choose another port in `listeners`") from error
    if isinstance(server, GuardedServer):
        server.listens(f"gRPC port {bound}", bound)
    return bound


def _check_port_is_free(host: str, port: int) -> None:
    """Tries the port first, because gRPC's own error does not state the reason. Raises StartError."""
    if not host:
        host = _EVERYWHERE if socket.has_dualstack_ipv6() else "0.0.0.0"
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise StartError(
            f"cannot resolve the listener's host {host!r}: {error.strerror}; correct it"
        ) from error
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        may_bind_again(probe)
        try:
            probe.bind(address)
        except OSError as error:
            raise cannot_listen(address_text(host, port), error, "`listeners`") from error
