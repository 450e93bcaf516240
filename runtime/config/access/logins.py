"""Who this program logs in as at other nodes, out of a JAAS line. What a login sends is not known here."""

from __future__ import annotations

from dataclasses import dataclass, field

from metaquorum.runtime.config.access.jaas import JaasLine
from metaquorum.runtime.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """Who logs in. `by_token`: the user is a delegation token's id, and the password its HMAC. OAUTHBEARER
    has the token as its password, and no user. The keys are where a person corrects them."""

    mechanism: str
    user: str = ""
    password: str = field(default="", repr=False)
    by_token: bool = False
    mechanism_key: str = "sasl.mechanism"
    secret_key: str = "sasl.jaas.config"


def login_in(line: JaasLine, key: str, mechanism: str, mechanism_key: str) -> Credentials:
    """Who logs in by a line of PLAIN or SCRAM. Raises ConfigError."""
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
