"""Certificates for tests, and the TLS contexts of programs that are not ours.

The certificates lack the key identifiers that RFC 5280 asks for, like those that keytool and most
instructions make, so that every test with TLS shows that such ones are accepted.
"""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from collections.abc import Iterable
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

Issuer = tuple[ec.EllipticCurvePrivateKey, x509.Certificate]
Extension = tuple[x509.ExtensionType, bool]
"""An extension, and whether it is critical."""


def constraints(*, ca: bool, critical: bool = True) -> Extension:
    return x509.BasicConstraints(ca=ca, path_length=None), critical


def certificate_files(
    folder: Path,
    name: str,
    issuer: Issuer | None,
    *,
    days_left: int = 1,
    extensions: Iterable[Extension] | None = None,
) -> Issuer:
    """(key, certificate) of an authority (`issuer` None) or of a node; also written as PEM. `extensions`
    replaces the basic constraints that fit."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if issuer is None else issuer[1].subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=3))
        .not_valid_after(now + datetime.timedelta(days=days_left))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False
        )
    )
    for extension, critical in [constraints(ca=issuer is None)] if extensions is None else extensions:
        builder = builder.add_extension(extension, critical=critical)
    certificate = builder.sign(key if issuer is None else issuer[0], hashes.SHA256())
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / f"{name}.pem").write_bytes(secret + pem)
    (folder / f"{name}.crt").write_bytes(pem)
    return key, certificate


def foreign_client(
    folder: Path, authority: str | None = "authority", own: str | None = None
) -> ssl.SSLContext:
    """The context of a client that trusts this authority (None: those of the machine) and may have a
    certificate of its own. Since 3.13 Python's default refuses certificates without key identifiers."""
    context = ssl.create_default_context(cafile=None if authority is None else folder / f"{authority}.crt")
    context.verify_flags &= ~ssl.VerifyFlags.VERIFY_X509_STRICT
    if own is not None:
        context.load_cert_chain(folder / f"{own}.pem")
    return context


def foreign_server(folder: Path, own: str = "node", authority: str | None = None) -> ssl.SSLContext:
    """The context of a server that asks for no certificate; with `authority`, those that it signed would be
    accepted."""
    cafile = None if authority is None else folder / f"{authority}.crt"
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=cafile)
    context.verify_flags &= ~ssl.VerifyFlags.VERIFY_X509_STRICT
    context.load_cert_chain(folder / f"{own}.pem")
    return context


def certificates_of(folder: Path, *names: str) -> Issuer:
    """New files of an authority and of nodes or clients that it signed."""
    authority = certificate_files(folder, "authority", None)
    for name in names:
        certificate_files(folder, name, authority)
    return authority


def node_and_client(folder: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """A server's context and that of a client that trusts it, from new files."""
    certificate_files(folder, "node", certificate_files(folder, "authority", None))
    return foreign_server(folder), foreign_client(folder)
