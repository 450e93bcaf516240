"""OAUTHBEARER: tokens that a key of the file has signed, and no others."""

from __future__ import annotations

import base64
import json
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from metaquorum.errors import ConfigError
from metaquorum.listeners.oauth import OAuthExchange, TokenRules, read_keys
from metaquorum.listeners.sasl import InvalidCredentials

NOW_S = 1_700_000_000
RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OTHER = rsa.generate_private_key(public_exponent=65537, key_size=2048)
CURVE = ec.generate_private_key(ec.SECP256R1())
CLAIMS = {"sub": "alice", "exp": NOW_S + 60, "iss": "here", "aud": ["kafka", "other"]}


def jwk(key: Any, **more: str) -> dict[str, Any]:
    return {**json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key())), **more}


EC = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(CURVE.public_key()))


def jwks() -> str:
    keys = [
        jwk(OTHER, kid="o", use="enc"),
        jwk(RSA, kid="r", use="sig"),
        {**EC, "kid": "e", "alg": "ES256"},
    ]
    return json.dumps({"keys": keys})


KEYS = read_keys("k", jwks())


def message(token: str) -> bytes:
    return f"n,,\x01auth=Bearer {token}\x01\x01".encode()


def exchange(**rules: Any) -> OAuthExchange:
    return OAuthExchange(TokenRules(keys=KEYS, **rules))


def signed(key: Any = RSA, algorithm: str = "RS256", kid: str | None = "r", **claims: Any) -> str:
    headers = {} if kid is None else {"kid": kid}
    found = {name: value for name, value in {**CLAIMS, **claims}.items() if value is not None}
    return jwt.encode(found, key, algorithm=algorithm, headers=headers)


@pytest.mark.parametrize(
    "token",
    [
        signed(),
        signed(algorithm="PS512"),
        signed(kid=None),
        signed(CURVE, "ES256", "e"),
        signed(exp=NOW_S - 29),
        signed(nbf=NOW_S + 30, iat=NOW_S + 30),
    ],
)
def test_a_signed_token_lets_in(token: str) -> None:
    found = exchange(audience=("kafka",), issuer="here")
    assert found.respond(message(token), NOW_S * 1000) == b""
    assert found.granted is not None and found.granted.user == "alice"


def test_a_key_without_an_id_is_tried_for_every_token() -> None:
    nameless = [("", key, algorithms) for _, key, algorithms in KEYS]
    for token in (signed(), signed(CURVE, "ES256", "e"), signed(kid=None)):
        found = OAuthExchange(TokenRules(keys=nameless))
        assert found.respond(message(token), NOW_S * 1000) == b"" and found.granted is not None


def test_the_session_ends_with_the_token() -> None:
    found = exchange()
    found.respond(message(signed()), NOW_S * 1000)
    assert found.granted is not None and found.granted.expires_ms == (NOW_S + 60) * 1000


def unsigned() -> str:
    head, body = ({"alg": "none", "typ": "JWT"}, CLAIMS)
    return (
        ".".join(
            base64.urlsafe_b64encode(json.dumps(each).encode()).rstrip(b"=").decode() for each in (head, body)
        )
        + "."
    )


def signed_with_the_public_key() -> str:
    """HMAC under the public key, which everyone knows: a header must not choose the algorithm."""
    public = RSA.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    head, body = ({"alg": "HS256", "typ": "JWT", "kid": "r"}, CLAIMS)
    text = ".".join(
        base64.urlsafe_b64encode(json.dumps(each).encode()).rstrip(b"=").decode() for each in (head, body)
    )
    import hmac

    mac = base64.urlsafe_b64encode(hmac.digest(public, text.encode(), "sha256")).rstrip(b"=").decode()
    return f"{text}.{mac}"


@pytest.mark.parametrize(
    ("token", "why"),
    [
        (unsigned(), "not signed by a key in the file"),
        (signed_with_the_public_key(), "not signed by a key in the file"),
        (signed(OTHER), "not signed by a key in the file"),
        (signed(OTHER, kid="o"), "not signed by a key in the file"),  # that key is for encryption
        (signed(OTHER, kid=None), "not signed by a key in the file"),
        (signed(kid="unknown"), "not signed by a key in the file"),
        (signed(CURVE, "ES256", "r"), "not signed by a key in the file"),
        (signed()[:-6] + "AAAAAA", "not signed by a key in the file"),
        (signed(exp=NOW_S - 31), "expired"),
        (signed(exp=None), "needs exp"),
        (signed(nbf=NOW_S + 31), "not valid yet"),
        (signed(iat=NOW_S + 31), "not valid yet"),
        (signed(iss="there"), "another issuer"),
        (signed(aud="other"), "another audience"),
        (signed(aud=None), "another audience"),
        (signed(aud=5), "another audience"),
        (signed(aud=[{"kafka": 1}, ["kafka"]]), "another audience"),
        (signed(sub=None), "no sub"),
        (signed(sub=""), "no sub"),
        ("abc", "not a signed JWT"),
    ],
)
def test_other_tokens_are_refused_after_a_second_message(token: str, why: str) -> None:
    found = exchange(audience=("kafka",), issuer="here")
    assert found.respond(message(token), NOW_S * 1000) == b'{"status":"invalid_token"}'
    assert found.granted is None
    with pytest.raises(InvalidCredentials, match=why):
        found.respond(b"\x01", NOW_S * 1000)
    # What comes then, a good token too, is refused.
    with pytest.raises(InvalidCredentials):
        found.respond(message(signed()), NOW_S * 1000)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"n,,\x01\x01",
        b"n,,\x01auth=Basic abc\x01\x01",
        b"\xff",
        message(signed())[:-1],
        b"n,a=bob," + message(signed())[3:],
    ],
)
def test_what_is_no_token(content: bytes) -> None:
    with pytest.raises(InvalidCredentials):
        exchange().respond(content, NOW_S * 1000)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{}",
        "[]",
        '{"keys": []}',
        '{"keys": [{"kty": "RSA"}]}',
        '{"keys": [{"kty": "XYZ"}]}',
        '{"keys": [1]}',
        json.dumps({"keys": [jwk(RSA, use="enc")]}),
        json.dumps({"keys": [jwk(RSA, alg="HS256")]}),
        json.dumps({"keys": [{**EC, "alg": "ES384"}]}),
    ],
)
def test_files_that_are_no_keys(content: str) -> None:
    with pytest.raises(ConfigError, match="k "):
        read_keys("k", content)
