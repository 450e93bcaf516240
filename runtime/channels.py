"""gRPC channels and servers as every process here makes them: bounds, keepalive, TLS, no proxies.

Knows nothing of services. Certificates are read once, when the process starts.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc
import grpc.aio
from grpc.aio import EOF  # type: ignore[attr-defined]

from runtime.errors import ConfigError, StartError

END_OF_STREAM: Final[object] = EOF
"""What `read` of a stream returns at its end."""

MAX_MESSAGE_BYTES = 64 * 1024 * 1024

_COMMON_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
)
_CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    *_COMMON_OPTIONS,
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", 20),
    ("grpc.min_reconnect_backoff_ms", 20),
    ("grpc.max_reconnect_backoff_ms", 200),
    # One channel's backoff must not hold up another channel to the same address.
    ("grpc.use_local_subchannel_pool", 1),
)
_SERVER_OPTIONS: tuple[tuple[str, int], ...] = (
    *_COMMON_OPTIONS,
    # Two processes on one port would each get half of the connections: refuse instead.
    ("grpc.so_reuseport", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """PEM files. `client_auth`: a server asks for a certificate that `ca` signed, and takes no other."""

    certificate: Path | None = None
    key: Path | None = None
    ca: Path | None = None
    client_auth: bool = False


@dataclass(frozen=True, slots=True)
class TlsMaterial:
    """The contents of `TlsFiles`, None where a file is not configured."""

    certificate: bytes | None
    key: bytes | None
    ca: bytes | None
    client_auth: bool

    @classmethod
    def load(cls, files: TlsFiles) -> TlsMaterial:
        """Reads the files; raises ConfigError, naming the file that cannot be read or is no PEM."""
        return cls(_pem(files.certificate), _pem(files.key), _pem(files.ca), files.client_auth)

    def server_credentials(self) -> grpc.ServerCredentials:
        if self.certificate is None or self.key is None:
            raise ConfigError("a TLS listener needs ssl.certificate.location and ssl.key.location: set both")
        if self.client_auth and self.ca is None:
            raise ConfigError(
                "ssl.client.auth=required needs ssl.ca.location: set it to the CA of the clients"
            )
        return grpc.ssl_server_credentials(
            [(self.key, self.certificate)],
            root_certificates=self.ca if self.client_auth else None,
            require_client_auth=self.client_auth,
        )

    def channel_credentials(self) -> grpc.ChannelCredentials:
        return grpc.ssl_channel_credentials(
            root_certificates=self.ca, private_key=self.key, certificate_chain=self.certificate
        )


def _pem(path: Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"cannot read {path}: {error.strerror}; correct the ssl.* key that names it"
        ) from error
    if b"-----BEGIN " not in content:
        raise ConfigError(f"{path} is no PEM file; correct the ssl.* key that names it")
    return content


def open_channel(host: str, port: int, tls: TlsMaterial | None) -> grpc.aio.Channel:
    """A channel to one address; nothing is connected before the first call."""
    target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    if tls is None:
        return grpc.aio.insecure_channel(target, options=_CHANNEL_OPTIONS)
    return grpc.aio.secure_channel(target, tls.channel_credentials(), options=_CHANNEL_OPTIONS)


def new_server() -> grpc.aio.Server:
    """A server without services; call `bind` before any file is touched."""
    return grpc.aio.server(options=_SERVER_OPTIONS)


def bind(server: grpc.aio.Server, host: str, port: int, tls: TlsMaterial | None) -> int:
    """Binds the port (0: any) and returns it; raises StartError, in one line, if it cannot be had."""
    _check_port_is_free(host, port)
    target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        if tls is None:
            return server.add_insecure_port(target)
        return server.add_secure_port(target, tls.server_credentials())
    except RuntimeError as error:
        raise StartError(f"cannot listen on {target}: {error}; choose another port in `listeners`") from error


def _check_port_is_free(host: str, port: int) -> None:
    """gRPC's own error does not say why, so the kernel is asked first."""
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
                f"cannot listen on {host}:{port}: {error.strerror}; "
                "stop the process that uses it, or choose another port in `listeners`"
            ) from error
