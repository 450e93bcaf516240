"""gRPC channels and servers with the settings of every process: limits, keepalive, TLS, no proxies.

Owns these settings, and the error if a port is in use. Knows nothing of services.
"""

from __future__ import annotations

import socket
from typing import Final

import grpc
import grpc.aio
from grpc.aio import EOF  # type: ignore[attr-defined]

from metaquorum.metadata.text.addresses import address_text
from metaquorum.runtime.errors import StartError
from metaquorum.runtime.rpc.decoding import GuardedServer
from metaquorum.runtime.tls.material import TlsMaterial

END_OF_STREAM: Final[object] = EOF
"""The value that `read` of a stream returns at its end."""

_EVERYWHERE = "::"
MAX_MESSAGE_BYTES = 64 * 1024 * 1024

_COMMON_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.max_frame_size", 16_777_215),
    ("grpc.http2.lookahead_bytes", 4 * 1024 * 1024),
)
_CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    *_COMMON_OPTIONS,
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", 20),
    # Timeout of one attempt to connect, including the handshake; a busy machine needs this long.
    ("grpc.min_reconnect_backoff_ms", 3_000),
    ("grpc.max_reconnect_backoff_ms", 200),
    # The backoff of one channel must not delay another channel to the same address.
    ("grpc.use_local_subchannel_pool", 1),
)
_SERVER_OPTIONS: tuple[tuple[str, int], ...] = (
    *_COMMON_OPTIONS,
    # Two processes on one port would each get half of the connections, so binding it must fail.
    ("grpc.so_reuseport", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
)


def open_channel(
    host: str, port: int, tls: TlsMaterial | None, *, message_max_bytes: int = MAX_MESSAGE_BYTES
) -> grpc.aio.Channel:
    """A channel to one address; it connects at the first call."""
    target = address_text(host, port)
    options = (*_CHANNEL_OPTIONS, *_message_options(message_max_bytes))
    if tls is None:
        return grpc.aio.insecure_channel(target, options=options)
    return grpc.aio.secure_channel(target, tls.channel_credentials(), options=options)


def new_server(*, message_max_bytes: int = MAX_MESSAGE_BYTES) -> GuardedServer:
    """A server without services; call `bind` before files are changed."""
    options = (*_SERVER_OPTIONS, *_message_options(message_max_bytes))
    return GuardedServer(grpc.aio.server(options=options))


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
            return server.add_insecure_port(target)
        return server.add_secure_port(target, tls.server_credentials())
    except RuntimeError as error:
        raise StartError(f"cannot listen on {target}: {error}; choose another port in `listeners`") from error


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
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError as error:
            raise StartError(
                f"cannot listen on {address_text(host, port)}: {error.strerror}; "
                "stop the process that uses it, or choose another port in `listeners`"
            ) from error
