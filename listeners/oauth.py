"""SASL OAUTHBEARER (RFC 7628) with signed tokens (RFC 7519), checked against keys in a local file.

A token must be signed by a key of the file with that key's algorithm, valid at the present time, and for
the configured audience and issuer. An unsigned token is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from metaquorum.errors import ConfigError
from metaquorum.listeners.sasl import Granted, InvalidCredentials
from metaquorum.metadata.extras import install_command

_FIRST = re.compile(
    r"n,(?:a=(?P<authorization>[^,]*))?,\x01(?P<pairs>(?:[A-Za-z]+=[\x09\x0a\x0d\x20-\x7e]*\x01)*)\x01"
)
_BEARER = re.compile(r"bearer +(?P<token>[-\w.~+/]+=*)", re.IGNORECASE)
_ALGORITHMS = {
    "RSA": ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    "OKP": ("EdDSA",),
    "oct": ("HS256", "HS384", "HS512"),
}
_CURVES = {"P-256": "ES256", "P-384": "ES384", "P-521": "ES512", "secp256k1": "ES256K"}
MISSING = (
    f"OAUTHBEARER needs the packages PyJWT and cryptography: {install_command('jwt')}, or remove OAUTHBEARER "
    "from sasl.enabled.mechanisms"
)


class TokenRules(msgspec.Struct, frozen=True, kw_only=True):
    """Requirements for a token. `keys` by id, each with the algorithms that it may sign with; the id is empty
    for a key without one."""

    keys: Sequence[tuple[str, Any, tuple[str, ...]]]
    audience: tuple[str, ...] = ()
    issuer: str | None = None
    clock_skew_s: int = 30
    subject_claim: str = "sub"


def read_keys(name: str, content: str) -> list[tuple[str, Any, tuple[str, ...]]]:
    """The keys of a JWK set (RFC 7517). Raises ConfigError, which names the configuration key `name`."""
    try:
        import jwt
    except ImportError as error:
        raise ConfigError(MISSING) from error
    try:
        found = json.loads(content)["keys"]
        keys = [
            (str(each.get("kid", "")), jwt.PyJWK(each, algorithm).key, algorithms)
            for each in found
            if each.get("use", "sig") == "sig"
            for algorithms in [_algorithms(each)]
            for algorithm in algorithms[:1]
        ]
    except (ValueError, KeyError, TypeError, AttributeError, jwt.PyJWTError) as error:
        raise ConfigError(
            f'{name} is not a JWK set ({type(error).__name__}): write {{"keys": [...]}}'
        ) from error
    if not keys:
        raise ConfigError(f"{name} has no key to check signatures with: add one")
    return keys


def _algorithms(jwk: Mapping[str, Any]) -> tuple[str, ...]:
    """The algorithms that a key may sign with; what a token claims does not count."""
    kind = jwk["kty"]
    allowed = (_CURVES[jwk["crv"]],) if kind == "EC" else _ALGORITHMS[kind]
    named = jwk.get("alg")
    if named is None:
        return allowed
    if named not in allowed:
        raise ValueError(f"a key of type {kind} does not sign with {named}")
    return (named,)


class OAuthExchange:
    """One message of the client, and after a refusal its acknowledgement."""

    def __init__(self, rules: TokenRules) -> None:
        self._rules = rules
        self._refusal: str | None = None
        self.granted: Granted | None = None

    def respond(self, token: bytes, wall_ms: int) -> bytes:
        if self._refusal is not None:
            raise InvalidCredentials(self._refusal)
        match = _FIRST.fullmatch(token.decode("utf-8", errors="replace"))
        if match is None:
            raise InvalidCredentials("the OAUTHBEARER message is malformed")
        pairs = dict(pair.split("=", 1) for pair in match["pairs"].split("\x01") if pair)
        bearer = _BEARER.fullmatch(pairs.get("auth", ""))
        if bearer is None:
            raise InvalidCredentials("the OAUTHBEARER message has no bearer token")
        try:
            claims = self._claims(bearer["token"], wall_ms)
        except InvalidCredentials as error:
            self._refusal = str(error)
            return b'{"status":"invalid_token"}'
        user = claims[self._rules.subject_claim]
        if match["authorization"] not in (None, "", user):
            raise InvalidCredentials(
                "the OAUTHBEARER message has an authorization id other than the token's subject"
            )
        self.granted = Granted(user=user, expires_ms=int(claims["exp"] * 1000))
        return b""

    def _claims(self, token: str, wall_ms: int) -> dict[str, Any]:
        """The claims of a token with a valid signature and valid times. Compares the times itself, because
        the time is an argument of an exchange."""
        import jwt

        rules = self._rules
        try:
            header = jwt.get_unverified_header(token)
        except jwt.PyJWTError as error:
            raise InvalidCredentials("the token is not a signed JWT") from error
        claims = self._verified(token, str(header.get("kid", "")), str(header.get("alg", "")))
        skew_ms = rules.clock_skew_s * 1000
        expires, begins = claims.get("exp"), claims.get("nbf", 0)
        issued = claims.get("iat", 0)
        if not all(isinstance(each, int | float) and abs(each) < 2**53 for each in (expires, begins, issued)):
            raise InvalidCredentials("the token's times are missing or not numbers: it needs exp")
        assert expires is not None
        if wall_ms > expires * 1000 + skew_ms:
            raise InvalidCredentials("the token has expired")
        if wall_ms < max(begins, issued) * 1000 - skew_ms:
            raise InvalidCredentials("the token is not valid yet")
        if rules.issuer is not None and claims.get("iss") != rules.issuer:
            raise InvalidCredentials("the token is from another issuer")
        audience = claims.get("aud")
        given = audience if isinstance(audience, list) else [audience]
        if rules.audience and not any(each in given for each in rules.audience):
            raise InvalidCredentials("the token is for another audience")
        subject = claims.get(rules.subject_claim)
        if not isinstance(subject, str) or not subject:
            raise InvalidCredentials(f"the token has no {rules.subject_claim}")
        return claims

    def _verified(self, token: str, key_id: str, algorithm: str) -> dict[str, Any]:
        import jwt

        unchecked = {"verify_exp": False, "verify_nbf": False, "verify_iat": False, "verify_aud": False}
        candidates = [
            (key, algorithms)
            for known_id, key, algorithms in self._rules.keys
            if algorithm in algorithms and (not key_id or not known_id or key_id == known_id)
        ]
        for key, algorithms in candidates:
            try:
                claims: dict[str, Any] = jwt.decode(
                    token,
                    key,
                    algorithms=list(algorithms),
                    options={**unchecked, "verify_iss": False, "verify_sub": False, "verify_jti": False},  # type: ignore[arg-type]
                )
            except jwt.PyJWTError:
                continue
            return claims
        raise InvalidCredentials("the token is not signed by a key in the file")
