"""The client's side of a login: against our own servers' side, and what a client must not believe."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
from pathlib import Path

import pytest

from metaquorum.clients.kafka.cluster import KafkaClient
from metaquorum.clients.kafka.login import (
    ClientSecurity,
    LoginFailed,
    ScramProof,
    client_security,
    load_client_security,
    new_proof,
)
from metaquorum.clients.search import ClientError
from metaquorum.config.security import Credentials
from metaquorum.errors import ConfigError
from metaquorum.listeners.login import SaslRules
from metaquorum.listeners.sasl import (
    Exchange,
    Granted,
    PlainExchange,
    Refused,
    ScramExchange,
    UserCredential,
)
from metaquorum.metadata.settings.scram import Mechanism
from metaquorum.wire.messages import ListGroupsRequest, ListGroupsResponse
from tests.unit.kafka.auth.test_login import PASSWORD, credential
from tests.unit.kafka.kafka_node import FakeNode, running

SCRAM = [Mechanism.SCRAM_SHA_256, Mechanism.SCRAM_SHA_512]
USERS = {"alice": PASSWORD, "a=b,c": "x"}


def find(mechanism: Mechanism, name: str, by_token: bool, wall_ms: int) -> UserCredential | None:
    if by_token:
        return (
            UserCredential(credential=credential(mechanism, "hmac"), user="owner")
            if name == "token"
            else None
        )
    return UserCredential(credential=credential(mechanism, USERS[name]), user=name) if name in USERS else None


def exchange(mechanism: str) -> Exchange:
    if mechanism == "PLAIN":
        return PlainExchange(USERS)
    return ScramExchange(Mechanism[mechanism.replace("-", "_")], find, "server")


def granted(credentials: Credentials) -> Granted | None:
    """Both sides, message by message."""
    server, proof = exchange(credentials.mechanism), new_proof(credentials, lambda: "client")
    token: bytes | None = proof.first()
    while token is not None:
        token = proof.respond(server.respond(token, 0))
    return server.granted


@pytest.mark.parametrize("mechanism", ["PLAIN", *(each.title for each in SCRAM)])
@pytest.mark.parametrize("user", USERS)
def test_who_knows_the_password_gets_in(mechanism: str, user: str) -> None:
    found = granted(Credentials(mechanism=mechanism, user=user, password=USERS[user]))
    assert found == Granted(user=user)
    with pytest.raises(Refused):
        granted(Credentials(mechanism=mechanism, user=user, password="other"))


def test_a_delegation_token_gets_in() -> None:
    found = granted(Credentials(mechanism="SCRAM-SHA-256", user="token", password="hmac", by_token=True))
    assert found == Granted(user="owner", by_token=True)


def challenge(nonce: str = "clientserver", salt: str = "c2FsdA==", count: object = 4096) -> bytes:
    return f"r={nonce},s={salt},i={count}".encode()


@pytest.mark.parametrize(
    "first",
    [
        challenge(nonce="client"),
        challenge(nonce="another"),
        challenge(salt="c2FsdA="),
        challenge(count=4095),
        challenge(count=9_999_999),
        challenge(count="0"),
        challenge(count="-4096"),
        b"e=other-error",
        b"",
        b"\xff",
    ],
)
def test_a_node_that_makes_no_sense_gets_no_proof(first: bytes) -> None:
    """Few iterations would give the password away, and many would keep the client busy."""
    alice = Credentials(mechanism="SCRAM-SHA-256", user="alice", password=PASSWORD)
    proof = new_proof(alice, lambda: "client")
    proof.first()
    with pytest.raises(LoginFailed):
        proof.respond(first)


@pytest.mark.parametrize("mechanism", SCRAM)
def test_a_node_must_know_the_credential(mechanism: Mechanism) -> None:
    credentials = Credentials(mechanism=mechanism.title, user="alice", password=PASSWORD)
    proof = ScramProof(credentials, mechanism, "client")
    proof.first()
    assert proof.respond(challenge()) is not None
    for final in (b"", b"v=", b"v=" + base64.b64encode(bytes(32)), b"e=invalid-proof"):
        with pytest.raises(LoginFailed, match="its proof is wrong"):
            proof.respond(final)


# ---- on a connection


def rules(*mechanisms: str) -> SaslRules:
    return SaslRules(mechanisms=mechanisms, new_exchange=exchange, max_reauth_ms={})


@pytest.mark.parametrize(
    ("mechanism", "password", "problem"),
    [
        ("SCRAM-SHA-256", PASSWORD, None),
        ("PLAIN", PASSWORD, None),
        ("PLAIN", "other", "refuses the login: Authentication failed: Invalid username or password; correct"),
        ("SCRAM-SHA-256", "other", "refuses the login: .* with SASL mechanism SCRAM-SHA-256; correct"),
        (
            "SCRAM-SHA-512",
            PASSWORD,
            "does not offer SCRAM-SHA-512: set sasl.mechanism to one of PLAIN, SCRAM",
        ),
        (None, "", "it closed the connection"),
    ],
)
async def test_a_login_on_a_connection(mechanism: str | None, password: str, problem: str | None) -> None:
    sasl = rules("PLAIN", "SCRAM-SHA-256")
    node = FakeNode({"ListGroups": lambda _: ListGroupsResponse()}, sasl=sasl)
    login = mechanism and Credentials(mechanism=mechanism, user="alice", password=password)
    # Who is refused is told at once; a connection that ends is tried again.
    limit_ms = 1_500 if mechanism is None else 60_000
    async with running(node) as servers:
        security = ClientSecurity(login=login or None)
        async with KafkaClient(servers, timeout_ms=limit_ms, security=security) as client:
            if problem is None:
                assert (await client.ask(ListGroupsRequest())).error_code == 0
            else:
                with pytest.raises(ClientError, match=problem) as error:
                    await client.ask(ListGroupsRequest())
                assert not password or password not in str(error.value)


async def test_requests_may_be_longer_than_logins_once_the_login_is_over() -> None:
    node = FakeNode({"ListGroups": lambda _: ListGroupsResponse()}, sasl=rules("PLAIN"))
    node.config = dataclasses.replace(node.config, login_max_bytes=2_000, request_max_bytes=50_000)
    security = ClientSecurity(login=Credentials(mechanism="PLAIN", user="alice", password=PASSWORD))
    async with running(node) as servers:
        async with KafkaClient(servers, timeout_ms=60_000, security=security) as client:
            long = ListGroupsRequest(states_filter=("x" * 10_000,))
            assert (await client.ask(long)).error_code == 0
    assert node.asked.count("ListGroups") == 1


async def test_a_connection_that_does_not_log_in_in_time_is_closed_and_another_is_not() -> None:
    node = FakeNode({"ListGroups": lambda _: ListGroupsResponse()}, sasl=rules("PLAIN"))
    node.config = dataclasses.replace(node.config, login_timeout_s=0.5)
    security = ClientSecurity(login=Credentials(mechanism="PLAIN", user="alice", password=PASSWORD))
    async with running(node) as servers, KafkaClient(servers, timeout_ms=60_000, security=security) as client:
        await client.ask(ListGroupsRequest())
        logged_in = set(node.open)
        reader, writer = await asyncio.open_connection("127.0.0.1", node.port)
        assert await asyncio.wait_for(reader.read(), 30) == b"", "closed without a word"
        writer.close()
        await client.ask(ListGroupsRequest())
        assert node.open == logged_in, "the connection with a login is the same"


# ---- the file

PLAIN_LINE = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="a" password="p";'
SCRAM_LINE = (
    'org.apache.kafka.common.security.scram.ScramLoginModule required username="a" password="p" '
    'tokenauth="true";'
)


def sasl(mechanism: str, line: str, **more: str) -> dict[str, str]:
    return {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": line,
        "request.timeout.ms": "1",
        **more,
    }


def test_what_a_file_says() -> None:
    assert client_security({}) == ClientSecurity()
    plain = client_security(sasl("PLAIN", PLAIN_LINE))
    assert plain.login == Credentials(mechanism="PLAIN", user="a", password="p")
    assert plain.tls is not None and plain.checks_names
    loose = {
        "ssl.endpoint.identification.algorithm": "",
        "ssl.truststore.location": "/ca.pem",
        "ssl.truststore.type": "PEM",
    }
    token = client_security(sasl("SCRAM-SHA-512", SCRAM_LINE) | loose)
    assert token.login is not None and token.login.by_token and not token.checks_names
    assert token.tls is not None and token.tls.truststore == Path("/ca.pem")
    assert "password" not in repr(token) and "'p'" not in repr(token)


@pytest.mark.parametrize(
    ("pairs", "problem"),
    [
        ({"security.protocol": "TLS"}, "security.protocol=TLS is not valid: choose one of PLAINTEXT"),
        ({"sasl.login.class": "x"}, "sasl.login.class is not supported here: supported are sasl.jaas.config"),
        ({"security.protocol": "SASL_SSL"}, "sasl.mechanism=GSSAPI is not supported: set it to one of PLAIN"),
        (sasl("PLAIN", ""), "sasl.jaas.config is not a JAAS line"),
        (sasl("PLAIN", SCRAM_LINE), "PLAIN has PlainLoginModule"),
        (sasl("PLAIN", PLAIN_LINE.replace('password="p"', "")), 'has no password: add password="..."'),
        ({"security.protocol": "SSL", "ssl.truststore.location": "a", "ssl.truststore.type": "JKS"}, "PEM"),
        (
            sasl("OAUTHBEARER", "x.OAuthBearerLoginModule required;"),
            "sasl.oauthbearer.token.endpoint.url is missing",
        ),
        (
            sasl("OAUTHBEARER", "", **{"sasl.oauthbearer.token.endpoint.url": "https://x/y"}),
            "must name a local file",
        ),
    ],
)
def test_a_file_that_is_wrong(pairs: dict[str, str], problem: str) -> None:
    with pytest.raises(ConfigError) as error:
        client_security(pairs)
    assert problem in str(error.value)
    assert "username" not in str(error.value)


def test_a_token_is_read_from_its_file(tmp_path: Path) -> None:
    path, token = tmp_path / "client.properties", tmp_path / "token"
    path.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=OAUTHBEARER\n"
        f"sasl.oauthbearer.token.endpoint.url={token.as_uri()}\n"
    )
    with pytest.raises(ConfigError, match=r"client\.properties: .*cannot be read: No such file"):
        load_client_security(path)
    token.write_text("abc.def.ghi\n")
    login = load_client_security(path).login
    assert login is not None and new_proof(login, str).first() == b"n,,\x01auth=Bearer abc.def.ghi\x01\x01"
    token.write_text("two\nlines")
    with pytest.raises(ConfigError, match="it must be one line"):
        load_client_security(path)
