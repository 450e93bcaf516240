"""The login of a connection: Kafka's recorded ones, byte by byte, and what must not pass."""

from __future__ import annotations

import base64
import gzip
import hmac
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from metaquorum.config.keys import KEYS
from metaquorum.listeners import sasl
from metaquorum.listeners.login import Login, LoginReply, SaslRules
from metaquorum.listeners.sasl import (
    Exchange,
    ImageCredentials,
    PlainExchange,
    ScramExchange,
    UserCredential,
)
from metaquorum.metadata.image import MetadataImage, ScramCredential
from metaquorum.metadata.image.types import DelegationToken
from metaquorum.metadata.settings.scram import Mechanism, salted_password, stored_keys
from metaquorum.wire import codec
from metaquorum.wire.messages import (
    MetadataRequest,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)

MECHANISMS = ("PLAIN", "SCRAM-SHA-512", "SCRAM-SHA-256")
HANDSHAKE, AUTHENTICATE, API_VERSIONS = 17, 36, 18
PASSWORD = "alice-secret"
TOKEN_KEY = b"wire-capture-secret"


def kind(mechanism: str) -> Mechanism:
    return Mechanism[mechanism.replace("-", "_")]


def credential(
    mechanism: Mechanism, password: str, salt: bytes = b"salt", iterations: int = 4096
) -> ScramCredential:
    stored_key, server_key = stored_keys(mechanism, salted_password(mechanism, password, salt, iterations))
    return ScramCredential(salt=salt, stored_key=stored_key, server_key=server_key, iterations=iterations)


class Recorded:
    """The rules of the recorded broker, whose salt and nonce are read out of what it answered."""

    def __init__(self) -> None:
        self.first = b""
        self.lifetime_ms = 0
        self.made: dict[tuple[Mechanism, str, bytes], ScramCredential] = {}

    def new_exchange(self, mechanism: str) -> Exchange:
        if mechanism == "PLAIN":
            return PlainExchange({"alice": PASSWORD, "admin": "admin-secret"})
        return ScramExchange(kind(mechanism), self.find, "")

    def find(self, mechanism: Mechanism, name: str, by_token: bool, wall_ms: int) -> UserCredential | None:
        password = {"alice": PASSWORD}.get(name)
        if by_token:
            password = base64.b64encode(hmac.digest(TOKEN_KEY, name.encode(), "sha512")).decode()
        if password is None:
            return None
        salt = base64.b64decode(self.first.split(b",s=")[1].split(b",i=")[0])
        key = (mechanism, name, salt)
        if key not in self.made:
            self.made[key] = credential(mechanism, password, salt)
        if by_token:
            return UserCredential(credential=self.made[key], user="alice", expires_ms=self.lifetime_ms)
        return UserCredential(credential=self.made[key], user=name)


def test_recorded_logins_byte_by_byte(shared_data: Path) -> None:
    rows: dict[int, list[dict[str, Any]]] = defaultdict(list)
    with gzip.open(shared_data / "kafka-3.7-wire/L-sasl.jsonl.gz") as lines:
        for line in lines:
            row = json.loads(line)
            if "sasl" in row.get("link", "") and row["dir"] in "<>":
                rows[row["conn"]].append(row)
    recorded = Recorded()
    done = refused = tokens = 0
    for conn, exchanged in rows.items():
        rules = SaslRules(mechanisms=MECHANISMS, new_exchange=recorded.new_exchange, max_reauth_ms={})
        asked = [base64.b64decode(row["frame"]) for row in exchanged if row["dir"] == ">"]
        answers = [base64.b64decode(row["frame"]) for row in exchanged if row["dir"] == "<"]
        recorded.lifetime_ms = max(
            codec.decode_response(
                36, row["api_version"], base64.b64decode(row["frame"])
            ).body.session_lifetime_ms
            if row.get("api_key") == AUTHENTICATE and row["dir"] == "<"
            else 0
            for row in exchanged
        )
        versions = iter(answers)
        login = Login(rules, lambda frame, versions=versions: ([next(versions)], frame[2:4] == b"\0\4"))
        for number, frame in enumerate(asked):
            if login.granted is not None or number >= len(answers):
                break
            answer = answers[number]
            if b"s=" in answer and b"i=4096" in answer:
                # The server's part of the nonce, which no one can guess.
                recorded.first = answer[answer.index(b"r=") :]
                exchange: Any = login._exchange
                client_nonce = frame.split(b",r=")[1].split(b",")[0].rstrip(b"\0")
                exchange._nonce = recorded.first[2:].split(b",s=")[0][len(client_nonce) :].decode()
            reply = login.take(frame, 0, 0)
            said = b"".join(bytes(each) for each in reply.chunks)
            if frame[:2] != b"\0\x12":
                assert said == answer, (conn, number)
            else:
                next(versions, None)
            versions = iter(answers[number + 1 :])
            login._answer_api_versions = lambda frame, versions=versions: (
                [next(versions)],
                frame[2:4] == b"\0\4",
            )
            refused += reply.end is not None
        if login.granted is not None:
            done += 1
            assert login.granted.user == "alice"
            tokens += login.granted.by_token
    assert (done > 15, refused > 40, tokens > 0) == (True, True, True), (done, refused, tokens)


# ---- written ones


def frame(key: int, version: int, body: Any, correlation_id: int = 1) -> bytes:
    return b"".join(codec.encode_request(codec.RequestHeader(key, version, correlation_id, "me"), body))


def handshake(mechanism: str, version: int = 1) -> bytes:
    return frame(HANDSHAKE, version, SaslHandshakeRequest(mechanism=mechanism))


def token(content: bytes, version: int = 2) -> bytes:
    return frame(AUTHENTICATE, version, SaslAuthenticateRequest(auth_bytes=content))


def answer(reply: LoginReply, key: int, version: int) -> Any:
    return codec.decode_response(key, version, b"".join(bytes(each) for each in reply.chunks)).body


def new_login(mechanism: str = "PLAIN", max_reauth_ms: int = 0, expires_ms: int | None = None) -> Login:
    users = {name: credential(Mechanism.SCRAM_SHA_256, f"{name}-secret") for name in ("alice", "a,b=c")}

    def find(mechanism: Mechanism, name: str, by_token: bool, wall_ms: int) -> UserCredential | None:
        found = users.get(name)
        return None if found is None else UserCredential(credential=found, user=name, expires_ms=expires_ms)

    def new_exchange(name: str) -> Exchange:
        if name == "PLAIN":
            return PlainExchange({"alice": PASSWORD, "bob": "b"})
        return ScramExchange(kind(name), find, "server")

    rules = SaslRules(
        mechanisms=("PLAIN", "SCRAM-SHA-256"),
        new_exchange=new_exchange,
        max_reauth_ms={mechanism: max_reauth_ms},
    )
    return Login(rules, lambda frame: ([b"versions"], False))


def plain(login: Login, user: str = "alice", password: str = PASSWORD, now_ms: int = 0) -> Any:
    login.take(handshake("PLAIN"), now_ms, 0)
    return answer(login.take(token(f"\0{user}\0{password}".encode()), now_ms, 0), AUTHENTICATE, 2)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"\0alice\0wrong", "Authentication failed: Invalid username or password"),
        (b"\0alice\0alice-secret ", "Authentication failed: Invalid username or password"),
        (b"\0nobody\0alice-secret", "Authentication failed: Invalid username or password"),
        (b"\0alice\0", "Authentication failed: password not specified"),
        (b"\0\0alice-secret", "Authentication failed: username not specified"),
        (b"bob\0alice\0alice-secret", "different from username"),
        (b"alice\0alice-secret", "invalid credentials with SASL mechanism PLAIN"),
        (b"\0alice\0alice-secret\0", "invalid credentials with SASL mechanism PLAIN"),
        (b"\xff\0alice\0alice-secret", "invalid credentials with SASL mechanism PLAIN"),
        (b"", "invalid credentials with SASL mechanism PLAIN"),
        (b"\0" + b"a" * 100_000 + b"\0x", "Authentication failed: Invalid username or password"),
    ],
)
def test_plain_refuses(content: bytes, text: str) -> None:
    login = new_login()
    login.take(handshake("PLAIN"), 0, 0)
    reply = login.take(token(content), 0, 0)
    body = answer(reply, AUTHENTICATE, 2)
    assert body.error_code == 58 and text in body.error_message
    assert reply.end is not None and "secret" not in reply.end and login.granted is None
    # Nothing more is taken.
    assert login.take(handshake("PLAIN"), 0, 0).end is not None


def scram_final(
    first: bytes, server: bytes, password: str, *, binding: str = "biws", nonce: str = ""
) -> bytes:
    values = dict(part.split("=", 1) for part in server.decode().split(","))
    bare = f"c={binding},r={nonce or values['r']}"
    salted = salted_password(
        Mechanism.SCRAM_SHA_256, password, base64.b64decode(values["s"]), int(values["i"])
    )
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    stored_key, _ = stored_keys(Mechanism.SCRAM_SHA_256, salted)
    signature = hmac.digest(stored_key, first[3:] + b"," + server + b"," + bare.encode(), "sha256")
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    return f"{bare},p={base64.b64encode(proof).decode()}".encode()


def scram(login: Login, first: bytes, password: str = PASSWORD, **how: Any) -> Any:
    login.take(handshake("SCRAM-SHA-256"), 0, 0)
    begun = answer(login.take(token(first), 0, 0), AUTHENTICATE, 2)
    if begun.error_code:
        return begun
    return answer(
        login.take(token(scram_final(first, bytes(begun.auth_bytes), password, **how)), 0, 0), AUTHENTICATE, 2
    )


@pytest.mark.parametrize("first", [b"n,,n=alice,r=abc", b"n,a=alice,n=alice,r=abc", b"n,,n=alice,r=abc,x=y"])
def test_scram_lets_in(first: bytes) -> None:
    login = new_login("SCRAM-SHA-256")
    login.take(handshake("SCRAM-SHA-256"), 0, 0)
    begun = answer(login.take(token(first), 0, 0), AUTHENTICATE, 2)
    bare_first = b"n,," + first.split(b",", 2)[2]
    body = answer(
        login.take(token(scram_final(bare_first, bytes(begun.auth_bytes), PASSWORD)), 0, 0), AUTHENTICATE, 2
    )
    assert body.error_code == 0 and bytes(body.auth_bytes).startswith(b"v=")
    assert login.granted is not None and login.granted.user == "alice"


def test_scram_names_with_commas() -> None:
    login = new_login()
    assert scram(login, b"n,,n=a=2Cb=3Dc,r=abc", "a,b=c-secret").error_code == 0
    assert login.granted is not None and login.granted.user == "a,b=c"


@pytest.mark.parametrize(
    "first",
    [
        b"n,,n=nobody,r=abc",
        b"n,,n=alice",
        b"n,,n=alice,r=",
        b"y,,n=alice,r=abc",
        b"p=tls-unique,,n=alice,r=abc",
        b"n,a=bob,n=alice,r=abc",
        b"n,,n=al=2cice,r=abc",
        b"n,,n=al=ice,r=abc",
        b"n,,n=" + b"a" * 100_000 + b",r=abc",
        b"\xff\xfe",
        b"",
        b"c=biws,r=abcserver,p=AAAA",
    ],
)
def test_scram_refuses_what_begins_it(first: bytes) -> None:
    login = new_login()
    login.take(handshake("SCRAM-SHA-256"), 0, 0)
    reply = login.take(token(first), 0, 0)
    assert answer(reply, AUTHENTICATE, 2).error_code == 58 and reply.end is not None


@pytest.mark.parametrize(
    ("password", "how"),
    [("wrong", {}), (PASSWORD, {"nonce": "abc"}), (PASSWORD, {"binding": "cD10bHMtdW5pcXVlLCw="})],
)
def test_scram_refuses_a_wrong_proof(password: str, how: dict[str, str]) -> None:
    login = new_login()
    body = scram(login, b"n,,n=alice,r=abc", password, **how)
    assert body.error_code == 58 and login.granted is None
    assert body.error_message.endswith("due to invalid credentials with SASL mechanism SCRAM-SHA-256")


@pytest.mark.parametrize(
    "final", [b"", b"c=biws,r=abcserver", b"c=biws,r=abcserver,p=!", b"c=biws,r=abcserver,p=AAAA"]
)
def test_scram_refuses_what_is_no_proof(final: bytes) -> None:
    login = new_login()
    login.take(handshake("SCRAM-SHA-256"), 0, 0)
    login.take(token(b"n,,n=alice,r=abc"), 0, 0)
    assert answer(login.take(token(final), 0, 0), AUTHENTICATE, 2).error_code == 58


def test_a_credential_with_few_iterations_is_refused() -> None:
    weak = credential(Mechanism.SCRAM_SHA_256, "p", iterations=10)
    exchange = ScramExchange(
        Mechanism.SCRAM_SHA_256, lambda *_: UserCredential(credential=weak, user="alice"), "server"
    )
    with pytest.raises(Exception, match="fewer than 4096 iterations"):
        exchange.respond(b"n,,n=alice,r=abc", 0)


def image_of_tokens(
    *ids: str, owner: str = "User:alice", max_ms: int = 101, expires_ms: int = 101
) -> MetadataImage:
    builder = MetadataImage().delegation_tokens.builder()
    for token_id in ids:
        token = DelegationToken(
            owner=owner,
            requester=owner,
            renewers=(),
            issue_timestamp_ms=0,
            max_timestamp_ms=max_ms,
            expiration_timestamp_ms=expires_ms,
            token_id=token_id,
        )
        builder.put(token_id, token)
    return MetadataImage(delegation_tokens=builder.freeze())


@pytest.mark.parametrize(
    ("owner", "expires_ms", "max_ms", "key", "is_found"),
    [
        ("User:alice", 101, 101, "k", True),
        ("User:alice", 100, 101, "k", False),
        ("User:alice", 101, 100, "k", False),
        ("Group:alice", 101, 101, "k", False),
        ("User:alice", 101, 101, None, False),
    ],
)
def test_a_token_stands_for_a_user_until_it_expires(
    owner: str, expires_ms: int, max_ms: int, key: str | None, is_found: bool
) -> None:
    image = image_of_tokens("t", owner=owner, max_ms=max_ms, expires_ms=expires_ms)
    found = ImageCredentials(lambda: image, key).find(Mechanism.SCRAM_SHA_256, "t", True, 100)
    assert (found is not None) is is_found
    assert found is None or (found.user, found.expires_ms) == ("alice", 101)


def test_credentials_of_tokens_are_kept_for_each_token_and_mechanism_and_no_longer_than_it_is_valid(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However many clients come, so many are kept."""
    monkeypatch.setattr(sasl, "KEPT_TOKENS", 3)
    made: list[tuple[str, Mechanism]] = []

    def credential_of(key: str, token_id: str, mechanism: Mechanism) -> ScramCredential:
        made.append((token_id, mechanism))
        secret = f"{key} {token_id} {mechanism.name}".encode()
        return ScramCredential(salt=secret, stored_key=secret, server_key=secret, iterations=4096)

    monkeypatch.setattr(sasl, "_token_credential", credential_of)
    kept = ImageCredentials(lambda: image_of_tokens("t", "u", "v"), "k")
    asked = [(token_id, mechanism) for token_id in ("t", "u", "v") for mechanism in Mechanism]
    for token_id, mechanism in asked:
        for _ in range(2):
            found = kept.find(mechanism, token_id, True, 100)
            assert found is not None
            assert found.credential.salt == f"k {token_id} {mechanism.name}".encode()
        assert len(kept._of_tokens) <= 3
    assert made == asked
    assert kept.find(mechanism, token_id, True, 101) is None


def test_a_mechanism_that_is_not_offered() -> None:
    login = new_login()
    reply = login.take(handshake("GSSAPI"), 0, 0)
    body = answer(reply, HANDSHAKE, 1)
    assert (body.error_code, body.mechanisms) == (33, ("PLAIN", "SCRAM-SHA-256"))
    assert reply.end is not None and "use PLAIN, SCRAM-SHA-256" in reply.end


@pytest.mark.parametrize(
    "frames",
    [
        [frame(3, 12, MetadataRequest(topics=()))],
        [token(b"\0alice\0alice-secret")],
        [b"\0"],
        [b"\x60\x82\x01\x02"],
        [handshake("PLAIN"), frame(3, 12, MetadataRequest(topics=()))],
        [handshake("PLAIN"), handshake("PLAIN")],
        [handshake("PLAIN"), token(b"x")[:12]],
        [handshake("PLAIN")[:-2]],
    ],
)
def test_anything_else_before_a_login_ends_the_connection(frames: list[bytes]) -> None:
    login = new_login()
    replies = [login.take(each, 0, 0) for each in frames]
    assert replies[-1].end is not None and login.granted is None


def test_bare_tokens_after_the_first_handshake() -> None:
    login = new_login()
    assert answer(login.take(handshake("PLAIN", 0), 0, 0), HANDSHAKE, 0).error_code == 0
    assert login.take(b"\0alice\0alice-secret", 0, 0) == LoginReply(chunks=[b""])
    assert login.granted is not None
    refused = new_login()
    refused.take(handshake("PLAIN", 0), 0, 0)
    reply = refused.take(b"\0alice\0wrong", 0, 0)
    assert reply.chunks == [] and reply.end is not None


def test_a_session_ends_and_is_renewed_by_the_same_user() -> None:
    login = new_login(max_reauth_ms=5_000)
    assert plain(login).session_lifetime_ms == 5_000
    assert not login.has_ended(5_000) and login.has_ended(5_001)
    assert not login.takes(handshake("PLAIN"), 500), "sooner than a client may"
    assert not login.takes(frame(3, 12, MetadataRequest(topics=())), 2_000)
    assert login.takes(handshake("PLAIN"), 6_000)
    assert plain(login, now_ms=6_000).error_code == 0
    assert login.granted is not None and not login.has_ended(11_000) and login.has_ended(11_001)
    assert not login.takes(handshake("PLAIN"), 6_500), "sooner than a client may"
    assert login.takes(handshake("PLAIN"), 8_000)
    body = plain(login, "bob", "b", now_ms=12_000)
    assert body.error_code == 58 and "Cannot change principals" in body.error_message
    assert login.granted is None


def test_another_login_keeps_the_mechanism() -> None:
    login = new_login(max_reauth_ms=5_000)
    plain(login)
    assert login.take(handshake("SCRAM-SHA-256"), 2_000, 0).end is not None


def test_no_one_is_there_during_another_login() -> None:
    login = new_login(max_reauth_ms=5_000)
    plain(login)
    login.take(handshake("PLAIN"), 2_000, 0)
    assert login.granted is None and login.takes(frame(3, 12, MetadataRequest(topics=())), 2_000)


def test_a_session_ends_with_its_credential() -> None:
    login = new_login("SCRAM-SHA-256", max_reauth_ms=5_000, expires_ms=3_000)
    assert scram(login, b"n,,n=alice,r=abc").session_lifetime_ms == 3_000
    assert login.has_ended(3_001)
    over = new_login("SCRAM-SHA-256", max_reauth_ms=5_000, expires_ms=-9)  # within the clocks' difference
    assert scram(over, b"n,,n=alice,r=abc").session_lifetime_ms == 0
    assert not over.has_ended(0) and over.has_ended(1)
    without_end = new_login("SCRAM-SHA-256")
    assert scram(without_end, b"n,,n=alice,r=abc").session_lifetime_ms == 0
    assert not without_end.has_ended(10**15)


def test_without_a_limit_a_session_ends_with_its_token_alone_and_the_key_says_so() -> None:
    assert KEYS["connections.max.reauth.ms"].default == 0
    login = new_login("SCRAM-SHA-256", max_reauth_ms=0, expires_ms=3_000)
    assert scram(login, b"n,,n=alice,r=abc").session_lifetime_ms == 3_000
    assert not login.has_ended(3_000) and login.has_ended(3_001)
    assert "0: only when its token ends" in KEYS["connections.max.reauth.ms"].text
