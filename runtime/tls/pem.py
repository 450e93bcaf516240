"""What the PEM files of `TlsFiles` hold at one moment, in the forms in which TLS is given it.

Reads all at once: what was read once stays usable when the files are replaced. Knows no listener.
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
    """The contents, None where a file is not configured. `servers`: a context for each value of
    ssl.client.auth, without a key none; `client`: for connections."""

    key: bytes | None
    chain: bytes | None
    authorities: bytes | None
    servers: dict[str, ssl.SSLContext]
    client: ssl.SSLContext

    @classmethod
    def load(cls, files: TlsFiles) -> Self:
        """Raises ConfigError, naming the file that cannot be read, lacks a part or does not fit together."""
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
    """`client_auth`: `none`, `requested` or `required`. A client shows its certificate each time it connects:
    no session is taken up again that began with other files."""
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
    """The PEM blocks whose label ends in `label`; an encrypted key counts as absent."""
    pattern = rb"-----BEGIN (?!ENCRYPTED)[A-Z ]*" + label + rb"-----.+?-----END [A-Z ]*" + label + rb"-----"
    found = re.findall(pattern, content, re.DOTALL)
    if not found:
        raise ConfigError(f"{name}={path} holds no {what} in PEM form: add it to the file")
    return b"\n".join(found) + b"\n"
