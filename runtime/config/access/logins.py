"""The user as which this program logs in at other nodes, from a JAAS line.

Owns the credentials. Does not know the messages of a login: `runtime.kafka.auth.proving` does.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from metaquorum.runtime.config.access.jaas import JaasLine
from metaquorum.runtime.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """Credentials of a login. `by_token`: the user is a delegation token's id, and the password its HMAC. For
    OAUTHBEARER the password is the token, and there is no user. `mechanism_key` and `secret_key` are the
    configuration keys that error texts name."""

    mechanism: str
    user: str = ""
    password: str = field(default="", repr=False)
    by_token: bool = False
    mechanism_key: str = "sasl.mechanism"
    secret_key: str = "sasl.jaas.config"


def login_in(line: JaasLine, key: str, mechanism: str, mechanism_key: str) -> Credentials:
    """The credentials in a JAAS line of PLAIN or SCRAM. Raises ConfigError."""
    for name in ("username", "password"):
        if not line.options.get(name):
            raise ConfigError(f'{key} has no {name}: add {name}="..."')
    return Credentials(
        mechanism=mechanism,
        user=line.options["username"],
        password=line.options["password"],
        by_token=line.options.get("tokenauth", "").lower() == "true",
        mechanism_key=mechanism_key,
        secret_key=key,
    )
