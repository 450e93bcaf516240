"""The contents of the PEM files of `TlsFiles` at one moment, in the forms that TLS needs.

Owns reading all files at once, so that the contents stay usable when the files are replaced. Knows no
listener, and does not notice changes (`material`).
"""

from __future__ import annotations

import re
import ssl
from pathlib import Path
from typing import Self

import msgspec

from metaquorum.runtime.config.tls import TlsFiles
from metaquorum.runtime.errors import ConfigError

_MODES = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


class Pems(msgspec.Struct, frozen=True, kw_only=True):
    """The contents; None if a file is not configured. `servers` has a context for each value of
    ssl.client.auth, none without a key; `client` is the context for connections."""

    key: bytes | None
    chain: bytes | None
    authorities: bytes | None
    servers: dict[str, ssl.SSLContext]
    client: ssl.SSLContext

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
        client = _context(ssl.PROTOCOL_TLS_CLIENT, files, authorities)
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
    context = _context(ssl.PROTOCOL_TLS_SERVER, files, authorities)
    context.options |= ssl.OP_NO_TICKET
    context.num_tickets = 0
    if authorities is not None:
        context.verify_mode = _MODES[client_auth]
    return context


def _context(protocol: int, files: TlsFiles, authorities: bytes | None) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
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
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{name}={path} cannot be read: {error.strerror}; correct the path") from error


def _blocks(content: bytes, label: bytes, name: str, path: Path, what: str) -> bytes:
    """The PEM blocks whose label ends in `label`. Raises ConfigError if there is none; an encrypted key
    does not count."""
    pattern = rb"-----BEGIN (?!ENCRYPTED)[A-Z ]*" + label + rb"-----.+?-----END [A-Z ]*" + label + rb"-----"
    found = re.findall(pattern, content, re.DOTALL)
    if not found:
        raise ConfigError(f"{name}={path} holds no {what} in PEM form: add it to the file")
    return b"\n".join(found) + b"\n"
