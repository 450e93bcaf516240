"""How clients reach a test cluster: plainly, or at a listener of their own with a login or TLS.

Brokers use a plain listener among themselves in any case.
"""

from __future__ import annotations

import base64
import datetime
import ipaddress
import json
import os
import random
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from metaquorum.metadata.extras import install_command, is_installed
from metaquorum.node.local_nodes import HOST, KAFKA_LISTENER
from metaquorum.testing.errors import ClusterError

if TYPE_CHECKING:
    pass

LISTENER = "CLIENTS"
SCRAM, OAUTH = "scram", "oauth"
MECHANISMS = {SCRAM: "SCRAM-SHA-256", OAUTH: "OAUTHBEARER"}
USER = "test"
TOKEN_S = 3600.0
KEYS_FILE = "keys.json"
_SECRET_BYTES = 32
_SIGNED_BY = "HS256"


class ClientAccess:
    """`sasl`: how clients log in; None: they do not. `password`: that of `USER`, with SCRAM."""

    def __init__(self, sasl: str | None, *, tls: bool, rng: random.Random) -> None:
        self.sasl = sasl
        self.tls = tls
        self.password = f"{rng.getrandbits(64):016x}" if sasl == SCRAM else None
        self._secret = rng.randbytes(_SECRET_BYTES) if sasl == OAUTH else b""
        """Signs tokens."""
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._certificates: Certificates | None = None
        self._expires_ms = 0
        """When the last of the tokens so far expires."""

    @classmethod
    def of(cls, sasl: str | None, tls: bool, rng: random.Random) -> ClientAccess:
        """Raises ClusterError."""
        if sasl not in (None, *MECHANISMS):
            raise ClusterError(f'sasl={sasl!r}: write "{SCRAM}" or "{OAUTH}"')
        needed = {"cryptography": "tls=True"} if tls else {}
        needed |= {"jwt": f'sasl="{OAUTH}"'} if sasl == OAUTH else {}
        for module, wish in needed.items():
            if not is_installed(module):
                name = "PyJWT" if module == "jwt" else module
                raise ClusterError(f"{wish} needs {name}: {install_command(module)}")
        return cls(sasl, tls=tls, rng=rng)

    @property
    def is_plain(self) -> bool:
        return self.sasl is None and not self.tls

    @property
    def protocol(self) -> str:
        """Kafka's name of the security protocol."""
        names = {(False, False): "PLAINTEXT", (True, False): "SASL_PLAINTEXT", (False, True): "SSL"}
        return names.get((self.sasl is not None, self.tls), "SASL_SSL")

    @property
    def ca_file(self) -> str | None:
        """The certificate that clients trust; None without TLS."""
        return None if self._certificates is None else self._certificates.authority_file

    @property
    def certificates(self) -> Certificates:
        """Raises ClusterError without TLS, or while the cluster does not run."""
        if self._certificates is None:
            raise ClusterError("this cluster has no certificates: have one with tls=True, and start it")
        return self._certificates

    def open(self, home: Path | None) -> None:
        """Makes the certificates, and the key of the tokens, in a folder that goes with the cluster."""
        if self.tls or self.sasl == OAUTH:
            self._folder = tempfile.TemporaryDirectory(prefix="kafka-access-", dir=home)
        if self._folder is not None and self.tls:
            self._certificates = Certificates(self._folder.name)
        if self._folder is not None and self.sasl == OAUTH:
            secret = base64.urlsafe_b64encode(self._secret).decode().rstrip("=")
            keys = [{"kty": "oct", "k": secret, "alg": _SIGNED_BY}]
            Path(self._folder.name, KEYS_FILE).write_text(json.dumps({"keys": keys}))

    def close(self) -> None:
        folder, self._folder, self._certificates = self._folder, None, None
        if folder is not None:
            folder.cleanup()

    def settings(self, plain: Mapping[str, str], port: int) -> dict[str, str]:
        """Those of a broker that differ from its plain ones."""
        if not port:
            return {}
        own = f"listener.name.{LISTENER.lower()}"
        protocols = plain["listener.security.protocol.map"]
        changed = {
            "listeners": f"{plain['listeners']},{LISTENER}://{HOST}:{port}",
            "listener.security.protocol.map": f"{protocols},{LISTENER}:{self.protocol}",
            "inter.broker.listener.name": KAFKA_LISTENER,
        }
        if self.sasl is not None:
            changed["sasl.enabled.mechanisms"] = MECHANISMS[self.sasl]
        if self._folder is not None and self.sasl == OAUTH:
            keys = Path(self._folder.name, KEYS_FILE).as_uri()
            changed[f"{own}.sasl.oauthbearer.jwks.endpoint.url"] = keys
            changed[f"{own}.sasl.oauthbearer.clock.skew.seconds"] = "0"
        if self._certificates is not None:
            changed[f"{own}.ssl.keystore.type"] = changed[f"{own}.ssl.truststore.type"] = "PEM"
            changed[f"{own}.ssl.keystore.location"] = self._certificates.broker_file
            changed[f"{own}.ssl.truststore.location"] = self._certificates.trusted_file
            changed[f"{own}.ssl.client.auth"] = "requested"
        return changed

    def client_config(self) -> dict[str, str]:
        """librdkafka's settings, without those that need none."""
        config = {} if self.is_plain else {"security.protocol": self.protocol}
        if self.sasl is not None:
            config["sasl.mechanism"] = MECHANISMS[self.sasl]
        if self.password is not None:
            config |= {"sasl.username": USER, "sasl.password": self.password}
        if self.ca_file is not None:
            config["ssl.ca.location"] = self.ca_file
        return config

    def require_users(self) -> None:
        """Raises ClusterError where clients do not log in with a user and a password."""
        if self.password is None:
            raise ClusterError(f'this cluster has no users: have one with sasl="{SCRAM}"')

    def token(self, user: str, wall_ms: int, lifetime_s: float) -> str:
        """A token with which a user logs in, from now, in Unix time. Raises ClusterError."""
        if self.sasl != OAUTH:
            raise ClusterError(f'this cluster has no tokens: have one with sasl="{OAUTH}"')
        if lifetime_s <= 0:
            raise ClusterError(f"seconds={lifetime_s:g}: a token lives for some time")
        import jwt

        expires_ms = wall_ms + int(lifetime_s * 1000)
        self._expires_ms = max(self._expires_ms, expires_ms)
        claims = {"sub": user, "iat": wall_ms / 1000, "exp": expires_ms / 1000}
        return jwt.encode(claims, self._secret, algorithm=_SIGNED_BY)

    def longest_token_s(self, wall_ms: int) -> float:
        """In how many seconds all tokens so far have expired; raises ClusterError if they have."""
        left_ms = self._expires_ms - wall_ms
        if left_ms < 0:
            raise ClusterError("there is no valid token: token() makes one")
        return (left_ms + 1) / 1000


# Certificates of a test cluster with TLS, in a folder: those of brokers and clients, which can expire.
#
# The authority of each client is its own, and brokers trust all of them. A certificate expires on the fly in
# that brokers know its authority by an expired certificate: a client meets it that loaded its files before,
# too. That of the brokers is replaced, and brokers read it again.

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
