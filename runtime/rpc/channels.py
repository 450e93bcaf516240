"""gRPC channels and servers as every process here makes them: bounds, keepalive, TLS, no proxies.

Knows nothing of services. Certificates are read once, when the process starts.
"""

from __future__ import annotations

import re
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc
import grpc.aio
from grpc.aio import EOF  # type: ignore[attr-defined]

from metaquorum.runtime.config.tls import TlsFiles
from metaquorum.runtime.errors import ConfigError, StartError
from metaquorum.runtime.rpc.decoding import GuardedServer

END_OF_STREAM: Final[object] = EOF
"""What `read` of a stream returns at its end."""

_EVERYWHERE = "::"
MAX_MESSAGE_BYTES = 64 * 1024 * 1024
_NO_KEYSTORE = (
    "an SSL listener needs ssl.keystore.location: set it to the PEM file with the key and certificate chain"
)

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
    # How long one attempt to connect may take, handshake included: a busy machine needs its time.
    ("grpc.min_reconnect_backoff_ms", 3_000),
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


@dataclass(frozen=True, slots=True)
class TlsMaterial:
    """The contents of `TlsFiles`, None where a file is not configured."""

    key: bytes | None
    chain: bytes | None
    authorities: bytes | None
    client_auth: bool
    keystore: Path | None = None
    """Where key and chain come from."""

    @classmethod
    def load(cls, files: TlsFiles) -> TlsMaterial:
        """Reads the files; raises ConfigError, naming the file that cannot be read or lacks a part."""
        key = chain = authorities = None
        if files.keystore is not None:
            content = _read("ssl.keystore.location", files.keystore)
            key = _blocks(
                content, b"PRIVATE KEY", "ssl.keystore.location", files.keystore, "unencrypted private key"
            )
            chain = _blocks(content, b"CERTIFICATE", "ssl.keystore.location", files.keystore, "certificate")
            _check_pair(files.keystore)
        if files.truststore is not None:
            content = _read("ssl.truststore.location", files.truststore)
            authorities = _blocks(
                content, b"CERTIFICATE", "ssl.truststore.location", files.truststore, "certificate"
            )
        return cls(key, chain, authorities, files.client_auth, files.keystore)

    def server_credentials(self) -> grpc.ServerCredentials:
        if self.key is None or self.chain is None:
            raise ConfigError(_NO_KEYSTORE)
        return grpc.ssl_server_credentials(
            [(self.key, self.chain)],
            root_certificates=self.authorities if self.client_auth else None,
            require_client_auth=self.client_auth,
        )

    def server_context(self, client_auth: str) -> ssl.SSLContext:
        """For listeners that do not speak gRPC; `client_auth` is `none`, `requested` or `required`. Raises
        ConfigError as `server_credentials` does."""
        if self.keystore is None:
            raise ConfigError(_NO_KEYSTORE)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(self.keystore)
        if client_auth != "none" and self.authorities is not None:
            context.load_verify_locations(cadata=self.authorities.decode("ascii"))
            context.verify_mode = ssl.CERT_REQUIRED if client_auth == "required" else ssl.CERT_OPTIONAL
        return context

    def client_context(self) -> ssl.SSLContext:
        """For connections that do not speak gRPC. The other side must be named as its certificate says."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self.authorities is None:
            context.load_default_certs()
        else:
            context.load_verify_locations(cadata=self.authorities.decode("ascii"))
        if self.keystore is not None:
            context.load_cert_chain(self.keystore)
        return context

    def channel_credentials(self) -> grpc.ChannelCredentials:
        return grpc.ssl_channel_credentials(
            root_certificates=self.authorities, private_key=self.key, certificate_chain=self.chain
        )


def _read(name: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{name}={path} cannot be read: {error.strerror}; correct the path") from error


def _check_pair(path: Path) -> None:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(path)
    except (ssl.SSLError, OSError) as error:
        why = getattr(error, "reason", None) or error
        raise ConfigError(
            f"ssl.keystore.location={path}: its key and certificate cannot be used ({why}); correct the file"
        ) from error


def _blocks(content: bytes, label: bytes, name: str, path: Path, what: str) -> bytes:
    """The PEM blocks whose label ends in `label`; an encrypted key counts as absent."""
    pattern = rb"-----BEGIN (?!ENCRYPTED)[A-Z ]*" + label + rb"-----.+?-----END [A-Z ]*" + label + rb"-----"
    found = re.findall(pattern, content, re.DOTALL)
    if not found:
        raise ConfigError(f"{name}={path} holds no {what} in PEM form: add it to the file")
    return b"\n".join(found) + b"\n"


def open_channel(
    host: str, port: int, tls: TlsMaterial | None, *, message_max_bytes: int = MAX_MESSAGE_BYTES
) -> grpc.aio.Channel:
    """A channel to one address; nothing is connected before the first call."""
    target = _target(host, port)
    options = (*_CHANNEL_OPTIONS, *_message_options(message_max_bytes))
    if tls is None:
        return grpc.aio.insecure_channel(target, options=options)
    return grpc.aio.secure_channel(target, tls.channel_credentials(), options=options)


def new_server(*, message_max_bytes: int = MAX_MESSAGE_BYTES) -> GuardedServer:
    """A server without services; call `bind` before any file is touched."""
    options = (*_SERVER_OPTIONS, *_message_options(message_max_bytes))
    return GuardedServer(grpc.aio.server(options=options))


def _message_options(max_bytes: int) -> tuple[tuple[str, int], ...]:
    return (
        ("grpc.max_receive_message_length", max_bytes),
        ("grpc.max_send_message_length", max_bytes),
    )


def bind(server: grpc.aio.Server, host: str, port: int, tls: TlsMaterial | None) -> int:
    """Binds the port (0: any) and returns it; raises StartError, in one line, if it cannot be had. An empty
    `host`: every interface, of IPv6 and IPv4 (gRPC takes the latter alone where there is no IPv6)."""
    _check_port_is_free(host, port)
    target = _target(host or _EVERYWHERE, port)
    try:
        if tls is None:
            return server.add_insecure_port(target)
        return server.add_secure_port(target, tls.server_credentials())
    except RuntimeError as error:
        raise StartError(f"cannot listen on {target}: {error}; choose another port in `listeners`") from error


def _target(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _check_port_is_free(host: str, port: int) -> None:
    """gRPC's own error does not say why, so the kernel is asked first."""
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
                f"cannot listen on {host}:{port}: {error.strerror}; "
                "stop the process that uses it, or choose another port in `listeners`"
            ) from error
