"""How clients reach a test cluster: plainly, or at a listener of their own with a login or TLS.

Brokers use a plain listener among themselves in any case.
"""

from __future__ import annotations

import base64
import json
import random
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from metaquorum.metadata.extras import install_command, is_installed
from metaquorum.node.local_nodes import HOST, KAFKA_LISTENER
from metaquorum.testing.errors import ClusterError

if TYPE_CHECKING:  # only clusters with TLS need it
    from metaquorum.testing.certificates import Certificates

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
            from metaquorum.testing.certificates import Certificates

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
