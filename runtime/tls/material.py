"""A process's key, certificates and CAs, in the forms for gRPC and for the ssl module.

Owns rereading the files when they change. Knows no listener and no connection; does not parse PEM (`pem`).
"""

from __future__ import annotations

import logging
import ssl
import threading
from pathlib import Path

import grpc

from metaquorum.runtime.config.tls import TlsFiles
from metaquorum.runtime.errors import ConfigError
from metaquorum.runtime.tls.pem import Pems, server_context

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
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
