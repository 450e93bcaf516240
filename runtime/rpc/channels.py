"""gRPC channels and servers as every process here makes them: bounds, keepalive, TLS, no proxies.

Knows nothing of services. Certificates are read again when their files change.
"""

from __future__ import annotations

import logging
import socket
import ssl
import threading
from pathlib import Path
from typing import Final

import grpc
import grpc.aio
from grpc.aio import EOF  # type: ignore[attr-defined]

from metaquorum.runtime.config.tls import TlsFiles
from metaquorum.runtime.errors import ConfigError, StartError
from metaquorum.runtime.rpc.decoding import GuardedServer
from metaquorum.runtime.rpc.pem import Pems, server_context

_log = logging.getLogger(__name__)

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


class TlsMaterial:
    """The files of `TlsFiles`, read again when they change: each handshake has those that are there then.
    What cannot be used is reported once, and the former contents stay in use."""

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._stamp = self._stamp_now()
        self._pems = Pems.load(files)
        self._lock = threading.Lock()  # gRPC asks on threads of its own
        self.version = 1
        """Counts the contents that were in use."""

    @classmethod
    def load(cls, files: TlsFiles) -> TlsMaterial:
        """Reads the files; raises ConfigError, naming the file that cannot be read or lacks a part."""
        return cls(files)

    @property
    def keystore(self) -> Path | None:
        """Where key and chain come from."""
        return self._files.keystore

    @property
    def authorities(self) -> bytes | None:
        return self._pems.authorities

    def refresh(self) -> Pems:
        """What is in use, after a look at the files."""
        stamp = self._stamp_now()
        if stamp != self._stamp:
            with self._lock:
                self._read_again(stamp)
        return self._pems

    def _read_again(self, stamp: object) -> None:
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            pems = Pems.load(self._files)
        except ConfigError as error:
            _log.error("TLS goes on with the former key and certificates: %s", error)
            return
        if self._stamp_now() == stamp:  # else someone is writing: the next look reads it
            self._pems = pems
            self.version += 1
            _log.info("read key and certificates again: %s", self._named())

    def _stamp_now(self) -> object:
        return tuple([_stamp_of(path) for path in self._paths()])

    def _paths(self) -> list[Path]:
        return [path for path in (self._files.keystore, self._files.truststore) if path is not None]

    def _named(self) -> str:
        return ", ".join(map(str, self._paths()))

    def server_credentials(self) -> grpc.ServerCredentials:
        if self.keystore is None:
            raise ConfigError(_NO_KEYSTORE)
        given = self.version

        def changed() -> grpc.ServerCertificateConfiguration | None:
            nonlocal given
            pems = self.refresh()
            if self.version == given:
                return None
            given = self.version
            return self._server_configuration(pems)

        return grpc.dynamic_ssl_server_credentials(
            self._server_configuration(self._pems),
            changed,  # type: ignore[arg-type]  # None: as before
            require_client_authentication=self._files.client_auth,
        )

    def _server_configuration(self, pems: Pems) -> grpc.ServerCertificateConfiguration:
        authorities = pems.authorities if self._files.client_auth else None
        return grpc.ssl_server_certificate_configuration([(pems.key or b"", pems.chain or b"")], authorities)

    def server_context(self, client_auth: str) -> ssl.SSLContext:
        """For listeners that do not speak gRPC; `client_auth` is `none`, `requested` or `required`. Raises
        ConfigError as `server_credentials` does."""
        if self.keystore is None:
            raise ConfigError(_NO_KEYSTORE)

        def choose(connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
            connection.context = self.refresh().servers[client_auth]

        context = server_context(self._files, self.authorities, client_auth)
        context.sni_callback = choose
        return context

    def client_context(self) -> ssl.SSLContext:
        """For connections that do not speak gRPC. The other side must be named as its certificate says."""
        return self.refresh().client

    def channel_credentials(self) -> grpc.ChannelCredentials:
        pems = self.refresh()
        return grpc.ssl_channel_credentials(
            root_certificates=pems.authorities, private_key=pems.key, certificate_chain=pems.chain
        )


def _stamp_of(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


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
