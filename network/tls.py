"""Keys, certificates and CAs of a process, for gRPC and for the ssl module, read again when the files change.

Only this module creates contexts, with the same rules on every Python. Python 3.13 and distributions that
patch OpenSSL's defaults differ there; Kafka, Java and gRPC do not:

- A certificate may lack an Authority Key Identifier, or deviate from RFC 5280 in other ways that OpenSSL
  accepts by default, as those made by keytool and by short openssl commands do.
- Each certificate in the truststore is trusted for itself, an intermediate CA without its root, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import socket
import ssl
import threading
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import grpc
import msgspec

from metaquorum.config.files import read_small_file
from metaquorum.config.security import TlsFiles
from metaquorum.errors import ConfigError

if TYPE_CHECKING:
    from metaquorum.config.node import NodeConfig

# What a server's handshake says last when it fails.
#
# asyncio and uvloop close the connection of a handshake that fails and drop what OpenSSL has to say about it:
# the client sees a reset where it should be told `certificate required` or `unknown ca`. `LastWords` keeps
# the alert and the connection.

LINGER_S = 1.0
"""How long a client may take to close the connection after an alert."""
LINGERING_MAX = 32
"""How many may do so at once; others find the connection closed right after the alert."""
_READ_BYTES, _READS_MAX = 65_536, 16


class _Handshake(ssl.SSLObject):
    """One side of a connection, whose failure is noted."""

    last_words: LastWords | None = None

    def do_handshake(self) -> None:
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError:
            if self.last_words is not None:
                self.last_words.keep_alert()
            raise


class ServerContext(ssl.SSLContext):
    """A context whose handshakes have last words, if the task that begins one has said so."""

    sslobject_class = _Handshake

    def wrap_bio(
        self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *more: Any, **options: Any
    ) -> ssl.SSLObject:
        handshake = super().wrap_bio(incoming, outgoing, *more, **options)
        last_words = _CURRENT.get()
        if last_words is not None and isinstance(handshake, _Handshake):
            handshake.last_words = last_words
            last_words.outgoing = outgoing
        return handshake


class LastWords:
    """Those of the next handshake of this task, with `client`. `drop` ends them."""

    lingering = 0

    def __init__(self, client: socket.socket) -> None:
        self._client = client
        self._alert = b""
        self._open: socket.socket | None = None
        self.outgoing: ssl.MemoryBIO | None = None
        _CURRENT.set(self)

    def keep_alert(self) -> None:
        """The handshake has failed, and the loop is about to close the connection, but not this copy."""
        self._alert = b"" if self.outgoing is None else self.outgoing.read()
        if self._alert:
            with contextlib.suppress(OSError):
                self._open = self._client.dup()

    async def say(self) -> None:
        """Sends the alert. The client closes first, for a while: what it has sent meanwhile would make the
        kernel reset the connection, and the client could not read the alert."""
        left = self._open
        if left is None:
            return
        with contextlib.suppress(OSError, TimeoutError):
            left.setblocking(False)
            left.send(self._alert)
            left.shutdown(socket.SHUT_WR)
            if LastWords.lingering < LINGERING_MAX:
                await self._linger(left)
        self.drop()

    @staticmethod
    async def _linger(left: socket.socket) -> None:
        LastWords.lingering += 1
        try:
            async with asyncio.timeout(LINGER_S):
                for _ in range(_READS_MAX):
                    if not await asyncio.get_running_loop().sock_recv(left, _READ_BYTES):
                        break
        finally:
            LastWords.lingering -= 1

    def drop(self) -> None:
        """Lets go of the connection."""
        if self._open is not None:
            self._open.close()
            self._open = None


_CURRENT: ContextVar[LastWords | None] = ContextVar("last_words", default=None)


_ACCEPTS = ssl.VerifyFlags.VERIFY_X509_TRUSTED_FIRST | ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN


def new_server_context() -> ssl.SSLContext:
    """For a side that accepts connections: no certificate of its own and none asked for yet."""
    return _with_rules(ServerContext(ssl.PROTOCOL_TLS_SERVER))


def new_client_context(*, verifies: bool = True) -> ssl.SSLContext:
    """For a side that connects: trusts no CA yet. Without `verifies`, it takes any certificate of any
    host."""
    context = _with_rules(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
    if not verifies:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _with_rules(context: ssl.SSLContext) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_flags = _ACCEPTS
    return context


ABORTED = "it aborted the handshake: it may not accept this node's certificate"


def handshake_problem(reason: str, detail: str = "") -> str:
    """What the client did in a server's handshake. `reason`: OpenSSL's name of the error; `detail`: its text
    about a certificate."""
    if reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return "it sent no certificate, but ssl.client.auth requires one"
    if reason == "CERTIFICATE_VERIFY_FAILED":
        return f"its certificate is not accepted: {detail}"
    if "ALERT" in reason:
        alert = reason.rpartition("ALERT_")[2].replace("_", " ").lower()
        return f"it does not accept this node's certificate ({alert})"
    if reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "HTTPS_PROXY_REQUEST", "UNEXPECTED_MESSAGE"):
        return "it does not speak TLS"
    if reason == "BAD_PACKET_LENGTH":
        # A plaintext alert instead of the next part of the handshake.
        return ABORTED
    return reason.replace("_", " ").lower()


def problem_of(error: ssl.SSLError) -> str:
    """The same for an error of the ssl module."""
    detail = error.verify_message if isinstance(error, ssl.SSLCertVerificationError) else ""
    return handshake_problem(error.reason or str(error), detail)


_MODES = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


class Pems(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of the files of `TlsFiles` at one moment; None if a file is not configured. All are read
    at once, so that they stay usable when the files are replaced."""

    key: bytes | None
    chain: bytes | None
    authorities: bytes | None
    servers: dict[str, ssl.SSLContext]
    """A context for each value of ssl.client.auth; none without a key."""
    client: ssl.SSLContext
    """For connections that this process opens."""

    @classmethod
    def load(cls, files: TlsFiles) -> Self:
        """Reads the files. Raises ConfigError, which names a file that cannot be read, lacks a part or whose
        parts do not match."""
        key = chain = authorities = None
        if files.keystore is not None:
            content = _read("ssl.keystore.location", files.keystore)
            key = _blocks(
                content, b"PRIVATE KEY", "ssl.keystore.location", files.keystore, "unencrypted private key"
            )
            chain = _blocks(content, b"CERTIFICATE", "ssl.keystore.location", files.keystore, "certificate")
        if files.truststore is not None:
            content = _read("ssl.truststore.location", files.truststore)
            authorities = _blocks(
                content, b"CERTIFICATE", "ssl.truststore.location", files.truststore, "certificate"
            )
        client = _filled(new_client_context(), files, authorities)
        if authorities is None:
            client.load_default_certs()
        servers = {}
        if files.keystore is not None:
            servers = {name: server_context(files, authorities, name) for name in _MODES}
        return cls(key=key, chain=chain, authorities=authorities, servers=servers, client=client)


def server_context(files: TlsFiles, authorities: bytes | None, client_auth: str) -> ssl.SSLContext:
    """A server's context; `client_auth` is `none`, `requested` or `required`. Sessions are never resumed,
    since a session may have started with other files: a client presents its certificate at every
    connection."""
    if client_auth == "none":
        authorities = None
    context = _filled(new_server_context(), files, authorities)
    context.options |= ssl.OP_NO_TICKET
    context.num_tickets = 0
    if authorities is not None:
        context.verify_mode = _MODES[client_auth]
    return context


def _filled(context: ssl.SSLContext, files: TlsFiles, authorities: bytes | None) -> ssl.SSLContext:
    """The context with the CAs, and with the key and certificate of the files. Raises ConfigError."""
    name, path = "truststore", files.truststore
    try:
        if authorities is not None:
            context.load_verify_locations(cadata=authorities.decode("ascii"))
        if files.keystore is not None:
            name, path = "keystore", files.keystore
            context.load_cert_chain(files.keystore)
    except (OSError, UnicodeDecodeError) as error:
        what = "its key and certificate" if name == "keystore" else "its certificates"
        why = getattr(error, "reason", None) or error
        raise ConfigError(
            f"ssl.{name}.location={path}: {what} cannot be used ({why}); correct the file"
        ) from error
    return context


def _read(name: str, path: Path) -> bytes:
    try:
        return read_small_file(path)
    except OSError as error:
        raise ConfigError(f"{name}={path} cannot be read: {error.strerror}; correct the path") from error


def _blocks(content: bytes, label: bytes, name: str, path: Path, what: str) -> bytes:
    """The PEM blocks whose label ends in `label`. Raises ConfigError if there is none; an encrypted key
    does not count."""
    pattern = rb"-----BEGIN (?!ENCRYPTED)[A-Z ]*" + label + rb"-----.+?-----END [A-Z ]*" + label + rb"-----"
    blocks = re.findall(pattern, content, re.DOTALL)
    if not blocks:
        raise ConfigError(f"{name}={path} holds no {what} in PEM form: add it to the file")
    return b"\n".join(blocks) + b"\n"


_log = logging.getLogger(__name__)
_NO_KEYSTORE = (
    "an SSL listener needs ssl.keystore.location: set it to the PEM file with the key and certificate chain"
)


class TlsMaterial:
    """The files of `TlsFiles`, read again when they change: each handshake uses the current ones. Invalid
    files are logged once, and the previous contents stay in use."""

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._stamp = self._stamp_now()
        self._pems = Pems.load(files)
        self._lock = threading.Lock()  # gRPC calls on its own threads
        self.version = 1
        """Increases whenever new contents come into use."""

    @classmethod
    def load(cls, files: TlsFiles) -> TlsMaterial:
        """Reads the files. Raises ConfigError, which names a file that cannot be read or lacks a part."""
        return cls(files)

    @property
    def keystore(self) -> Path | None:
        """The file with the key and the certificate chain."""
        return self._files.keystore

    @property
    def authorities(self) -> bytes | None:
        return self._pems.authorities

    def refresh(self) -> Pems:
        """The current contents; reads the files again if they have changed."""
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
            _log.error("TLS continues with the previous key and certificates: %s", error)
            return
        if self._stamp_now() == stamp:  # otherwise it is being written: the next call reads it
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
        """The context for listeners other than gRPC; `client_auth` is `none`, `requested` or `required`.
        Raises ConfigError if there is no keystore, like `server_credentials`."""
        if self.keystore is None:
            raise ConfigError(_NO_KEYSTORE)

        def choose(connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
            connection.context = self.refresh().servers[client_auth]

        context = server_context(self._files, self.authorities, client_auth)
        context.sni_callback = choose
        return context

    def client_context(self) -> ssl.SSLContext:
        """The context for connections other than gRPC. The host name must match the other side's
        certificate."""
        return self.refresh().client

    def channel_credentials(self) -> grpc.ChannelCredentials:
        pems = self.refresh()
        return grpc.ssl_channel_credentials(
            root_certificates=pems.authorities, private_key=pems.key, certificate_chain=pems.chain
        )


def _stamp_of(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


class NodeTls:
    """A node's keys and certificates: one set for each listener that has its own, shared by the others. A
    connection to a listener of this cluster uses that listener's set, as in Kafka."""

    def __init__(self, config: NodeConfig) -> None:
        """Reads the files. Raises ConfigError, which names a file that cannot be read or lacks a part."""
        by_files: dict[TlsFiles, TlsMaterial] = {}
        self._by_listener: dict[str, TlsMaterial] = {}
        for name in config.tls_listeners:
            files = config.tls_of(name)
            if files not in by_files:
                by_files[files] = TlsMaterial.load(files)
            self._by_listener[name] = by_files[files]
        self.controllers = self.of(config.controller_listener) if config.controllers_use_tls else None
        """For connections to controllers; None: they have no TLS."""
        followed = config.inter_broker_listener
        self.brokers = None if followed is None else self.of(followed.name)
        """For connections to other brokers; None: they have no TLS."""

    def of(self, listener: str) -> TlsMaterial | None:
        """For a listener of this node; None if it has no TLS."""
        return self._by_listener.get(listener)
