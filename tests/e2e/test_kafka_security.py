"""Kafka's clients log in to a real broker with every mechanism; wrong secrets are refused."""

from __future__ import annotations

import asyncio
import base64
import json
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiokafka
import aiokafka.abc
import aiokafka.errors
import confluent_kafka
import confluent_kafka.admin
import jwt
import kafka
import kafka.errors
import kafka.net.sasl.oauth
import pytest
from click.testing import CliRunner
from cryptography.hazmat.primitives.asymmetric import rsa

from metaquorum.cli.main import main
from metaquorum.metadata.settings.scram import Mechanism
from metaquorum.node.local_nodes import free_ports
from tests.e2e.cluster import FAST_BROKERS, HOST, Cluster
from tests.e2e.processes import run_cli
from tests.unit.server.certificates import certificate_files, certificates_of

pytestmark = pytest.mark.e2e
PASSWORD = "alice-secret-7731"
ROOT_PASSWORD = "root-secret-4402"
TOKEN_KEY = "key-of-all-tokens-9914"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
JAAS = "org.apache.kafka.common.security.plain.PlainLoginModule required"
ON_T = ("--resource-type", "topic", "--resource-name", "t")
SIGNING_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)


class SecureCluster:
    """A broker with a listener for logins and one for certificates."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder
        self.sasl_port, self.tls_port, self.metrics_port = free_ports(3)
        certificates_of(folder, "node", "carol", "root")
        keys = [{**json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(SIGNING_KEY.public_key())), "kid": "1"}]
        (folder / "keys.json").write_text(json.dumps({"keys": keys}))
        (node,) = cluster.brokers
        for each in cluster.nodes:
            each.set_properties({"delegation.token.secret.key": TOKEN_KEY, "log.level": "DEBUG"})
        node.set_properties(
            {
                "metrics.listener": f"http://{HOST}:{self.metrics_port}",
                "listeners": f"GRPC://{node.address},KAFKA_SASL://{HOST}:{self.sasl_port},"
                f"KAFKA_TLS://{HOST}:{self.tls_port}",
                "listener.security.protocol.map": "KAFKA_SASL:SASL_PLAINTEXT,KAFKA_TLS:SSL",
                "sasl.enabled.mechanisms": ",".join((*MECHANISMS, "OAUTHBEARER")),
                "listener.name.kafka_sasl.plain.sasl.jaas.config": f'{JAAS} user_alice="{PASSWORD}" '
                f'user_root="{ROOT_PASSWORD}";',
                "sasl.oauthbearer.jwks.endpoint.url": (folder / "keys.json").as_uri(),
                "ssl.keystore.location": str(folder / "node.pem"),
                "ssl.truststore.location": str(folder / "authority.crt"),
                "ssl.client.auth": "required",
                "ssl.principal.mapping.rules": "RULE:^CN=(.*?)$/$1/",
                "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
                "super.users": "User:root;User:ANONYMOUS",
            }
        )

    def login(self, mechanism: str, password: str = PASSWORD) -> dict[str, str]:
        """librdkafka's settings."""
        return {
            "bootstrap.servers": f"{HOST}:{self.sasl_port}",
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": mechanism,
            "sasl.username": "alice",
            "sasl.password": password,
        }

    def certificate(self, name: str) -> dict[str, str]:
        return {
            "bootstrap.servers": f"{HOST}:{self.tls_port}",
            "security.protocol": "SSL",
            "ssl.ca.location": str(self.folder / "authority.crt"),
            "ssl.certificate.location": str(self.folder / f"{name}.crt"),
            "ssl.key.location": str(self.folder / f"{name}.pem"),
        }

    def sees_topics(self, config: dict[str, Any], within_s: float = 20) -> str | None:
        """None if a client sees the cluster; otherwise what it reports."""
        said: list[str] = []
        admin = confluent_kafka.admin.AdminClient(
            {**config, "error_cb": lambda error: said.append(str(error))}
        )
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            try:
                admin.list_topics(timeout=0.5)
                return None
            except confluent_kafka.KafkaException:
                admin.poll(0)
                if any("uthenticat" in each or "SSL" in each for each in said):
                    return " ".join(said)
        return " ".join(said)

    def command(self, *arguments: str, text: str | None = None) -> str:
        """A command of the administrator, who logs in."""
        path = self.folder / "root.properties"
        path.write_text(
            "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
            f'sasl.jaas.config={JAAS} username="root" password="{ROOT_PASSWORD}";\n'
        )
        where = ("--bootstrap", f"{HOST}:{self.sasl_port}", "--command-config", str(path))
        done = CliRunner().invoke(main, [*arguments, *where], input=text, catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.stdout


def printed(*arguments: str) -> str:
    """Everything that a command prints, including its notes."""
    done = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture(name="site", scope="module")
def fixture_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureCluster]:
    folder = tmp_path_factory.mktemp("security")
    with Cluster(folder, controllers=1, brokers=1, properties=FAST_BROKERS) as cluster:
        (folder / "tls").mkdir()
        site = SecureCluster(cluster, folder / "tls")
        cluster.start()
        cluster.create_topic("t", partitions=1, replicas=1)
        for mechanism in Mechanism:
            given = ("alice", "--mechanism", mechanism.title, "--password-stdin")
            site.command("users", "scram", "set", *given, text=PASSWORD + "\n")
        for operation in ("read", "write"):
            site.command("acls", "add", "User:alice", *ON_T, "--operation", operation)
        yield site
        cluster.assert_no_bugs()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_librdkafka_logs_in(site: SecureCluster, mechanism: str) -> None:
    assert site.sees_topics(site.login(mechanism)) is None


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_librdkafka_with_a_wrong_password_does_not(site: SecureCluster, mechanism: str) -> None:
    refusal = site.sees_topics(site.login(mechanism, "wrong"))
    assert refusal is not None and "Authentication failed" in refusal


def token(subject: str = "alice", lifetime_s: int = 600) -> str:
    claims = {"sub": subject, "exp": int(time.time()) + lifetime_s}
    return jwt.encode(claims, SIGNING_KEY, algorithm="RS256", headers={"kid": "1"})


def by_token(text: str) -> dict[str, Any]:
    return {"sasl.mechanism": "OAUTHBEARER", "oauth_cb": lambda _: (text, time.time() + 600)}


def test_librdkafka_shows_a_token(site: SecureCluster) -> None:
    base = {
        key: value for key, value in site.login("").items() if key not in ("sasl.username", "sasl.password")
    }
    assert site.sees_topics({**base, **by_token(token())}) is None
    refusal = site.sees_topics({**base, **by_token(token(lifetime_s=-600))})
    assert refusal is not None and "uthenticat" in refusal


def test_librdkafka_shows_a_certificate(site: SecureCluster) -> None:
    assert site.sees_topics(site.certificate("carol")) is None
    certificate_files(site.folder, "stranger", certificate_files(site.folder, "elsewhere", None))
    assert site.sees_topics(site.certificate("stranger"), within_s=2) is not None


class Tokens(kafka.net.sasl.oauth.AbstractTokenProvider):  # type: ignore[misc]
    def token(self) -> str:
        return token()


def kafka_python(site: SecureCluster, mechanism: str, password: str = PASSWORD) -> kafka.KafkaConsumer:
    provider = {"sasl_oauth_token_provider": Tokens()} if mechanism == "OAUTHBEARER" else {}
    return kafka.KafkaConsumer(
        bootstrap_servers=f"{HOST}:{site.sasl_port}",
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism=mechanism,
        sasl_plain_username="alice",
        sasl_plain_password=password,
        bootstrap_timeout_ms=2_000,
        **provider,
    )


@pytest.mark.parametrize("mechanism", (*MECHANISMS, "OAUTHBEARER"))
def test_kafka_python_logs_in(site: SecureCluster, mechanism: str) -> None:
    consumer = kafka_python(site, mechanism)
    try:
        assert "t" in consumer.topics()
    finally:
        consumer.close()


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_kafka_python_with_a_wrong_password_does_not(site: SecureCluster, mechanism: str) -> None:
    with pytest.raises(kafka.errors.KafkaError):
        kafka_python(site, mechanism, "wrong").topics()


class AsyncTokens(aiokafka.abc.AbstractTokenProvider):  # type: ignore[misc]
    def __init__(self, lifetime_s: int) -> None:
        self._lifetime_s = lifetime_s

    async def token(self) -> str:
        return token(lifetime_s=self._lifetime_s)


def aiokafka_login(
    site: SecureCluster,
    mechanism: str,
    password: str = PASSWORD,
    *,
    user: str = "alice",
    lifetime_s: int = 600,
) -> dict[str, Any]:
    tokens = {"sasl_oauth_token_provider": AsyncTokens(lifetime_s)} if mechanism == "OAUTHBEARER" else {}
    return {
        "bootstrap_servers": f"{HOST}:{site.sasl_port}",
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "sasl_plain_username": user,
        "sasl_plain_password": password,
        **tokens,
    }


async def topics_of(login: dict[str, Any]) -> set[str]:
    """The topics that aiokafka sees. Raises KafkaError if it cannot log in."""
    consumer = aiokafka.AIOKafkaConsumer(**login)
    try:
        await consumer.start()
        return set(await consumer.topics())
    finally:
        await consumer.stop()


@pytest.mark.parametrize("mechanism", (*MECHANISMS, "OAUTHBEARER"))
async def test_aiokafka_logs_in(site: SecureCluster, mechanism: str) -> None:
    assert "t" in await topics_of(aiokafka_login(site, mechanism))


@pytest.mark.parametrize("mechanism", (*MECHANISMS, "OAUTHBEARER"))
async def test_aiokafka_with_a_wrong_secret_or_an_expired_token_does_not(
    site: SecureCluster, mechanism: str
) -> None:
    with pytest.raises(aiokafka.errors.KafkaError):
        await topics_of(aiokafka_login(site, mechanism, "wrong", lifetime_s=-600))


async def test_aiokafka_loses_a_right_while_it_is_connected(site: SecureCluster) -> None:
    given = ("bob", "--mechanism", "SCRAM-SHA-256", "--password-stdin")
    right = (*ON_T, "--operation", "write")
    await asyncio.to_thread(site.command, "users", "scram", "set", *given, text=PASSWORD + "\n")
    await asyncio.to_thread(site.command, "acls", "add", "User:bob", *right)
    producer = aiokafka.AIOKafkaProducer(**aiokafka_login(site, "SCRAM-SHA-256", user="bob"))
    await producer.start()
    try:
        await producer.send_and_wait("t", b"x")
        await asyncio.to_thread(site.command, "acls", "remove", "--principal", "User:bob", *right)
        with pytest.raises(aiokafka.errors.TopicAuthorizationFailedError):
            async with asyncio.timeout(90):
                while True:
                    await producer.send_and_wait("t", b"x")
    finally:
        await producer.stop()


def produce(config: dict[str, Any]) -> confluent_kafka.KafkaError | None:
    """The error of a message to the topic; None: it is stored."""
    found: list[confluent_kafka.KafkaError | None] = []
    producer = confluent_kafka.Producer({**config, "message.timeout.ms": 20_000})
    producer.produce("t", b"x", on_delivery=lambda error, _: found.append(error))
    producer.flush(30)
    return found[0]


def test_a_quota_makes_a_producer_wait(site: SecureCluster) -> None:
    site.command("quotas", "alter", "--user", "alice", "--set", "producer_byte_rate=100")
    told: list[confluent_kafka.ThrottleEvent] = []
    producer = confluent_kafka.Producer({**site.login("PLAIN"), "throttle_cb": told.append})

    def throttled() -> bool:
        producer.produce("t", b"x" * 1_100)
        producer.flush(30)
        return bool(told)

    site.cluster.wait(lambda: throttled() or None, "the quota is known")
    site.command("quotas", "alter", "--user", "alice", "--delete", "producer_byte_rate")
    assert told[0].throttle_time > 0


def test_a_consumer_with_a_quota_gets_all_that_is_there(site: SecureCluster) -> None:
    """More is waiting for it than its quota of ten seconds, in batches of any size."""
    producer = confluent_kafka.Producer({**site.login("PLAIN"), "batch.size": 200_000})
    for number in range(700):
        producer.produce("t", b"%06d" % number + b"q" * 994)
    assert producer.flush(60) == 0
    site.command("quotas", "alter", "--user", "alice", "--set", "consumer_byte_rate=60000")
    told: list[confluent_kafka.ThrottleEvent] = []
    consumer = confluent_kafka.Consumer(
        {
            **site.login("PLAIN"),
            "group.id": "slow",
            "auto.offset.reset": "earliest",
            "throttle_cb": told.append,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition("t", 0, confluent_kafka.OFFSET_BEGINNING)])
    found: set[bytes] = set()
    while len(found) < 700:
        message = consumer.poll(60)
        assert message is not None, f"{len(found)} messages, then nothing for a minute"
        error = message.error()
        assert error is None or error.code() == confluent_kafka.KafkaError.GROUP_AUTHORIZATION_FAILED
        if error is None and message.value().endswith(b"q"):
            found.add(message.value())
    consumer.close()
    site.command("quotas", "alter", "--user", "alice", "--delete", "consumer_byte_rate")
    assert told, "it was not throttled"


def test_rights_are_asked_for_and_can_be_taken_away(site: SecureCluster) -> None:
    alice, carol = site.login("PLAIN"), site.certificate("carol")
    assert produce(alice) is None
    denied = produce(carol)
    assert denied is not None and denied.code() == confluent_kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED
    # Topics that she may not describe are hidden.
    assert "t" not in confluent_kafka.admin.AdminClient(carol).list_topics(timeout=20).topics
    assert "t" in confluent_kafka.admin.AdminClient(alice).list_topics(timeout=20).topics
    connected = confluent_kafka.Producer(alice)
    found: list[confluent_kafka.KafkaError | None] = []
    connected.produce("t", b"x", on_delivery=lambda error, _: found.append(error))
    connected.flush(30)
    site.command("acls", "remove", "--principal", "User:alice", *ON_T, "--operation", "write")

    def refused() -> bool | None:
        connected.produce("t", b"x", on_delivery=lambda error, _: found.append(error))
        connected.flush(30)
        error = found[-1]
        return error is not None and error.code() == confluent_kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED

    site.cluster.wait(lambda: refused() or None, "the right is taken away")
    assert found[0] is None


def test_produce_says_which_right_is_missing(site: SecureCluster) -> None:
    """Without permission to write there is no producer id: librdkafka gives up all messages."""
    given = ("eve", "--mechanism", "SCRAM-SHA-256", "--password-stdin")
    site.command("users", "scram", "set", *given, text=PASSWORD + "\n")
    site.command("acls", "add", "User:eve", *ON_T, "--operation", "describe")
    (site.folder / "eve.properties").write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\n"
        "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required "
        f'username="eve" password="{PASSWORD}";\n'
    )
    where = ("--bootstrap", f"{HOST}:{site.sasl_port}", "--command-config", site.folder / "eve.properties")
    done = run_cli("produce", "t", "--count", 3, *where, expect=1)
    assert "CLUSTER_AUTHORIZATION_FAILED" in done.stderr


# ---- secrets


def spellings(secret: bytes) -> set[bytes]:
    """How a secret may appear in logs, tables and dumps."""
    found = {secret, secret.hex().encode(), repr(secret)[2:-1].encode()}
    return found | {base64.b64encode(secret).rstrip(b"="), base64.urlsafe_b64encode(secret).rstrip(b"=")}


def shown_by_tools(site: SecureCluster) -> Iterator[tuple[str, str]]:
    """What people are shown of the cluster: output of commands, responses of brokers, metrics."""
    broker, controller = site.cluster.brokers[0], site.cluster.controllers[0]
    log = str(controller.home)
    for words in (
        *(("dump", log, *form) for form in ((), ("--json",))),
        *(("state", log, *form) for form in ((), ("--json",))),
        ("timeline", log, "--json"),
        ("summary", log),
        ("dump", "--json", "--bootstrap", site.cluster.bootstrap),
    ):
        yield " ".join(words), printed("log", *words)
    for words in (("configs", "describe", "broker"), ("users", "scram", "list"), ("tokens", "list")):
        yield " ".join(words), site.command(*words, "--json")
    admin = confluent_kafka.admin.AdminClient(site.certificate("root"))
    resource = confluent_kafka.admin.ConfigResource("broker", str(broker.node_id))
    configs = admin.describe_configs([resource])[resource].result(30)
    assert configs["delegation.token.secret.key"].value is None
    yield "DescribeConfigs", repr({name: each.value for name, each in configs.items()})
    with urllib.request.urlopen(f"http://{HOST}:{site.metrics_port}/metrics", timeout=60) as page:
        yield "metrics", page.read().decode()


def test_secrets_are_in_nothing_that_was_written_or_shown(site: SecureCluster) -> None:
    made = json.loads(site.command("tokens", "create", "--json"))
    by_id = {**site.login("SCRAM-SHA-256", made["hmac"]), "sasl.username": made["tokenId"]}
    shown_token = token()
    site.sees_topics(by_id, within_s=2)  # librdkafka cannot say that it is a token: refused, and logged
    site.sees_topics({**site.login("PLAIN"), **by_token(shown_token)}, within_s=5)
    key = (site.folder / "node.pem").read_bytes().split(b"-----")[2].strip().splitlines()[0]
    never = {
        "password": PASSWORD.encode(),
        "administrator's password": ROOT_PASSWORD.encode(),
        "token's key": TOKEN_KEY.encode(),
        "token's HMAC": base64.b64decode(made["hmac"]),
        "OAUTH token": shown_token.rpartition(".")[2].encode(),
        "private key": key,
    }
    stored = {}
    lines = printed("log", "dump", "--json", "--secrets", "--bootstrap", site.cluster.bootstrap).splitlines()
    for row in [json.loads(line) for line in lines if "SCRAM" in line]:
        if row.get("data"):
            for name in ("salt", "storedKey", "serverKey"):
                stored[f"{name} {row['offset']}"] = base64.b64decode(row["data"][name])
    assert len(stored) >= 3 * len(Mechanism)
    shown = "".join(lines).encode()
    assert all(any(each in shown for each in spellings(secret)) for secret in stored.values())
    for node in site.cluster.nodes:
        files = [path for path in node.home.rglob("*") if path.is_file() and path != node.config]
        assert node.log_file in files and len(files) > 5
        for path in files:
            content = path.read_bytes()
            held = path.suffix in {".log", ".checkpoint"} and path != node.log_file  # records
            for name, secret in (never if held else never | stored).items():
                assert not any(each in content for each in spellings(secret)), (name, path)
    for what, text in shown_by_tools(site):
        for name, secret in (never | stored).items():
            assert not any(each in text.encode() for each in spellings(secret)), (name, what)
