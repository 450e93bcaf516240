"""How clients reach a test cluster: plainly, or at a listener of their own with a login or TLS.

Brokers use a plain listener among themselves in any case.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import random
import tempfile
from collections.abc import Mapping

from metaquorum.metadata.extras import install_command, is_installed
from metaquorum.node.local_nodes import HOST, KAFKA_LISTENER
from metaquorum.testing.errors import ClusterError

LISTENER = "CLIENTS"
MECHANISM = "SCRAM-SHA-256"
USER = "test"
KEY_FILE, AUTHORITY_FILE = "broker.pem", "authority.crt"
DAYS = 3650


class ClientAccess:
    """`password`: that of `USER`; None: there is no login."""

    def __init__(self, password: str | None, *, tls: bool) -> None:
        self.password = password
        self.tls = tls
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    @classmethod
    def of(cls, sasl: str | None, tls: bool, rng: random.Random) -> ClientAccess:
        """Raises ClusterError."""
        if sasl not in (None, "scram"):
            raise ClusterError(f'sasl={sasl!r}: write "scram"')
        if tls and not is_installed("cryptography"):
            raise ClusterError(f"tls=True needs cryptography: {install_command('cryptography')}")
        return cls(None if sasl is None else f"{rng.getrandbits(64):016x}", tls=tls)

    @property
    def is_plain(self) -> bool:
        return self.password is None and not self.tls

    @property
    def protocol(self) -> str:
        """Kafka's name of the security protocol."""
        names = {(False, False): "PLAINTEXT", (True, False): "SASL_PLAINTEXT", (False, True): "SSL"}
        return names.get((self.password is not None, self.tls), "SASL_SSL")

    @property
    def ca_file(self) -> str | None:
        """The certificate that clients trust; None without TLS."""
        return None if self._folder is None else os.path.join(self._folder.name, AUTHORITY_FILE)

    def open(self) -> None:
        """Makes the certificates."""
        if self.tls:
            self._folder = tempfile.TemporaryDirectory(prefix="kafka-tls-")
            write_certificates(self._folder.name)

    def close(self) -> None:
        folder, self._folder = self._folder, None
        if folder is not None:
            folder.cleanup()

    def settings(self, plain: Mapping[str, str], port: int) -> dict[str, str]:
        """Those of a broker that differ from its plain ones."""
        if not port:
            return {}
        protocols = plain["listener.security.protocol.map"]
        changed = {
            "listeners": f"{plain['listeners']},{LISTENER}://{HOST}:{port}",
            "listener.security.protocol.map": f"{protocols},{LISTENER}:{self.protocol}",
            "inter.broker.listener.name": KAFKA_LISTENER,
        }
        if self.password is not None:
            changed["sasl.enabled.mechanisms"] = MECHANISM
        if self._folder is not None:
            key = f"listener.name.{LISTENER.lower()}.ssl.keystore"
            changed[f"{key}.type"] = "PEM"
            changed[f"{key}.location"] = os.path.join(self._folder.name, KEY_FILE)
        return changed

    def client_config(self) -> dict[str, str]:
        """librdkafka's settings, without those that need none."""
        config = {} if self.is_plain else {"security.protocol": self.protocol}
        if self.password is not None:
            config |= {"sasl.mechanism": MECHANISM, "sasl.username": USER, "sasl.password": self.password}
        if self.ca_file is not None:
            config["ssl.ca.location"] = self.ca_file
        return config


def write_certificates(folder: str) -> None:
    """A key with its certificate for brokers at `HOST`, and the certificate of the authority that signed
    it."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    now = datetime.datetime.now(datetime.UTC)

    def name_of(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    def builder(subject: str, key: ec.EllipticCurvePrivateKey, *, ca: bool) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(name_of(subject))
            .issuer_name(name_of("authority"))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=DAYS))
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.public_key()), critical=False
            )
        )

    signing, own = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    usage = x509.KeyUsage(*(flag in (5, 6) for flag in range(9)))
    authority = builder("authority", signing, ca=True).add_extension(usage, critical=True)
    address = x509.SubjectAlternativeName(
        [x509.IPAddress(ipaddress.ip_address(HOST)), x509.DNSName("localhost")]
    )
    broker = builder("broker", own, ca=False).add_extension(address, critical=False)
    encoding = serialization.Encoding.PEM
    secret = own.private_bytes(
        encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ) + broker.sign(signing, hashes.SHA256()).public_bytes(encoding)
    trusted = authority.sign(signing, hashes.SHA256()).public_bytes(encoding)
    for file_name, content in ((KEY_FILE, secret), (AUTHORITY_FILE, trusted)):
        with open(os.path.join(folder, file_name), "wb") as file:
            file.write(content)
