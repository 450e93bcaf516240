"""Certificates of a test cluster with TLS, in a folder: those of brokers and clients, which can expire.

The authority of each client is its own, and brokers trust all of them. A certificate expires on the fly in
that brokers know its authority by an expired certificate: a client meets it that loaded its files before,
too. That of the brokers is replaced, and brokers read it again.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from metaquorum.node.local_nodes import HOST

DAYS = 3650
BROKER, AUTHORITY = "broker", "authority"
SIGNS_ONLY = x509.KeyUsage(*(flag in (5, 6) for flag in range(9)))
"""What the key of an authority is for: certificates and lists of revoked ones."""


class ClientFiles(NamedTuple):
    """The certificate and the key of a client."""

    certificate: str
    key: str


class Certificates:
    """Those in a folder. Not thread-safe."""

    def __init__(self, folder: str) -> None:
        """Makes those of the brokers."""
        self._folder = Path(folder)
        self.broker_file = str(self._folder / "broker.pem")
        """The key with its certificate for brokers at `HOST`."""
        self.authority_file = str(self._folder / "authority.crt")
        """Of the authority that signed it."""
        self.trusted_file = str(self._folder / "clients.crt")
        """Of the authorities whose clients brokers accept."""
        self._signing, self._own = _new_key(), _new_key()
        self._write(self.authority_file, _authority(AUTHORITY, self._signing))
        self._clients: dict[str, tuple[ec.EllipticCurvePrivateKey, ClientFiles]] = {}
        self._expired: set[str] = set()
        self.expire_broker(False)
        self._write_trusted()

    def expire_broker(self, has_expired: bool) -> None:
        """The brokers' certificate has expired, or is valid again, for the connections to come."""
        certificate = _signed(BROKER, self._own, AUTHORITY, self._signing, has_expired=has_expired)
        self._write(self.broker_file, _secret(self._own) + certificate)

    def client(self, name: str) -> ClientFiles:
        """The files of a client, which are made when it is first named."""
        if name not in self._clients:
            signing, own, number = _new_key(), _new_key(), len(self._clients)
            stem = str(self._folder / f"client-{number}")
            files = ClientFiles(f"{stem}.crt", f"{stem}.key")
            self._write(files.certificate, _signed(name, own, f"{AUTHORITY} of {name}", signing))
            self._write(files.key, _secret(own))
            self._clients[name] = signing, files
            self._write_trusted()
        return self._clients[name][1]

    def has_client(self, name: str) -> bool:
        return name in self._clients

    def expire_client(self, name: str, has_expired: bool) -> None:
        """A client's certificate has expired, or is valid again, for the connections to come."""
        (self._expired.add if has_expired else self._expired.discard)(name)
        self._write_trusted()

    def _write_trusted(self) -> None:
        # A truststore without a certificate is an error.
        trusted = [_authority(AUTHORITY, self._signing)]
        for name, (signing, _) in self._clients.items():
            trusted.append(_authority(f"{AUTHORITY} of {name}", signing, has_expired=name in self._expired))
        self._write(self.trusted_file, b"".join(trusted))

    def _write(self, path: str, content: bytes) -> None:
        new = Path(f"{path}.new")
        new.write_bytes(content)
        os.replace(new, path)


def _new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def _secret(key: ec.EllipticCurvePrivateKey) -> bytes:
    plain = serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)


def _authority(name: str, key: ec.EllipticCurvePrivateKey, *, has_expired: bool = False) -> bytes:
    return _signed(name, key, name, key, has_expired=has_expired)


def _signed(
    subject: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: str,
    signing: ec.EllipticCurvePrivateKey,
    *,
    has_expired: bool = False,
) -> bytes:
    """A certificate in PEM form; that of an authority, if it signs itself."""
    now, day = datetime.datetime.now(datetime.UTC), datetime.timedelta(days=1)
    is_authority = signing is key
    builder = (
        x509.CertificateBuilder()
        .subject_name(_name(subject))
        .issuer_name(_name(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - 2 * day)
        .not_valid_after(now - day if has_expired else now + DAYS * day)
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.public_key()), critical=False
        )
    )
    if is_authority:
        builder = builder.add_extension(SIGNS_ONLY, critical=True)
    elif subject == BROKER:
        names = [x509.IPAddress(ipaddress.ip_address(HOST)), x509.DNSName("localhost")]
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(signing, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])
