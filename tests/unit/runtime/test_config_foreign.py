"""Files of Kafka's nodes: what is passed over, what is refused, and that it is said in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from metaquorum.metadata.settings.kafka_keys import KAFKA_KEYS
from metaquorum.runtime.config.access.listeners import STANDARD_AUTHORIZER
from metaquorum.runtime.config.keys import KEYS
from metaquorum.runtime.config.load import load_config
from metaquorum.runtime.config.node import NodeConfig
from metaquorum.runtime.driver.driver import Ending
from metaquorum.runtime.errors import ConfigError
from metaquorum.runtime.process import run_process
from tests.unit.runtime.test_config import BROKER, CONTROLLER, written

KRAFT_BROKER = """
# Kafka's own config/kraft/broker.properties
process.roles=broker
node.id=2
controller.quorum.voters=1@localhost:9093
listeners=PLAINTEXT://localhost:9092
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://localhost:9092
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_SSL:SASL_SSL
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600
log.dirs=/tmp/kraft-broker-logs
num.partitions=1
num.recovery.threads.per.data.dir=1
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.retention.hours=168
log.segment.bytes=1073741824
log.retention.check.interval.ms=300000
"""


def with_key(tmp_path: Path, pairs: dict[str, str], name: str, value: str) -> Path:
    return written(tmp_path, {**pairs, name: value})


def refused(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    line = str(caught.value)
    assert line.startswith(f"{path}: ") and "\n" not in line
    return line


def test_kafkas_own_file_of_a_broker_starts_ours(tmp_path: Path) -> None:
    path = tmp_path / "broker.properties"
    path.write_text(KRAFT_BROKER)
    config = load_config(path, "broker")
    assert (config.node_id, config.log_dirs) == (2, (Path("/tmp/kraft-broker-logs"),))
    assert config.inter_broker_listener == config.advertised[0]
    assert config.passed_over == (
        "num.io.threads",
        "num.network.threads",
        "num.recovery.threads.per.data.dir",
        "socket.receive.buffer.bytes",
        "socket.send.buffer.bytes",
    )


def test_files_of_real_nodes(shared_data: Path, tmp_path: Path) -> None:
    """As they are, with two listeners of a broker, one of them with SASL."""
    for source in sorted((shared_data / "kafka-3.7-wire/server-properties").glob("*.properties")):
        text = source.read_text()
        path = tmp_path / source.name
        path.write_text(text)
        config = load_config(path)
        if config.role == "broker":
            assert config.inter_broker_listener is not None
            assert config.inter_broker_listener.name == "PLAINTEXT"
            assert config.access["SASL"].mechanisms == ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
        assert set(config.passed_over) <= {name.partition("=")[0] for name in text.splitlines()}
        assert "sasl.enabled.mechanisms" in config.values
    authorized = shared_data / "kafka-3.7/controller-3000/server.properties"
    path = tmp_path / "authorized.properties"
    path.write_text(authorized.read_text().replace("segment.bytes=131072", "segment.bytes=1048576"))
    assert load_config(path).values["authorizer.class.name"] == STANDARD_AUTHORIZER


@pytest.mark.parametrize("pairs", [BROKER, CONTROLLER], ids=["broker", "controller"])
def test_every_key_of_kafka_is_used_passed_over_or_refused_by_name(
    tmp_path: Path, pairs: dict[str, str]
) -> None:
    for name in sorted(KAFKA_KEYS - set(KEYS) - {"log.dir"}):
        path = with_key(tmp_path, pairs, name, "x")
        try:
            passed = load_config(path).passed_over
        except ConfigError as error:
            assert name in str(error) and "known key" not in str(error)
        else:
            assert passed == (name,)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("authorizer.class.name", "a.B", "use org.apache.kafka.metadata.authorizer.StandardAuthorizer"),
        ("super.users", "root", "write principals as User:alice"),
        ("create.topic.policy.class.name", "a.B", "what the policy would refuse"),
        ("alter.config.policy.class.name", "a.B", "what the policy would refuse"),
        ("config.providers", "file", "write the values into the file"),
        ("delete.topic.enable", "False", "topics can always be deleted"),
        ("remote.log.storage.system.enable", "true", "there is no tiered storage"),
        ("zookeeper.metadata.migration.enable", "true", "finish the migration with Kafka"),
        ("inter.broker.listener.name", "IN", "matches no listener that speaks Kafka's protocol"),
        ("security.inter.broker.protocol", "SASL_SSL", "there are: PLAINTEXT"),
        ("security.inter.broker.protocol", "SSL", "there are: PLAINTEXT"),
    ],
)
def test_what_must_not_be_passed_over(tmp_path: Path, name: str, value: str, text: str) -> None:
    line = refused(with_key(tmp_path, BROKER, name, value))
    assert name in line and text in line


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("delete.topic.enable", "true"),
        ("remote.log.storage.system.enable", "false"),
        ("ssl.keystore.password", "secret"),
        ("ssl.cipher.suites", "a"),
        ("listener.name.other.ssl.client.auth", "required"),
        ("listener.name.plaintext.max.connection.creation.rate", "5"),
        ("unclean.leader.election.enable", "true"),
        ("leader.imbalance.check.interval.seconds", "0"),
    ],
)
def test_what_changes_nothing_is_passed_over(tmp_path: Path, name: str, value: str) -> None:
    assert load_config(with_key(tmp_path, BROKER, name, value)).passed_over == (name,)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("ssl.keystore.password", "secret", "a PEM file has no password"),
        ("ssl.key.password", "secret", "decrypt the private key"),
        ("ssl.cipher.suites", "a", "gRPC chooses the cipher suites"),
        ("ssl.enabled.protocols", "TLSv1.3", "TLSv1.2 and TLSv1.3 are always enabled"),
        ("ssl.enabled.protocols", "TLSv1.2,TLSv1.3", None),
        ("ssl.keystore.key", "-----BEGIN", "name PEM files"),
        ("listener.name.safe.ssl.client.auth", "required", "needs ssl.truststore.location"),
        ("security.inter.broker.protocol", "PLAINTEXT", "there are: SAFE"),
    ],
)
def test_keys_of_tls_count_where_there_is_tls(
    tmp_path: Path, name: str, value: str, text: str | None
) -> None:
    tls = {
        "listeners": "SAFE://127.0.0.1:9092",
        "listener.security.protocol.map": "SAFE:SSL",
        "ssl.keystore.location": "/k.pem",
    }
    path = with_key(tmp_path, {**BROKER, **tls}, name, value)
    if text is None:
        assert load_config(path).passed_over == (name,)
    else:
        assert text in refused(path)


def test_everything_that_is_refused_is_in_one_line(tmp_path: Path) -> None:
    line = refused(written(tmp_path, {**CONTROLLER, "config.providers": "x", "delete.topic.enable": "false"}))
    assert "config.providers is not supported" in line and "; delete.topic.enable is not" in line


@pytest.mark.parametrize("protocol", ["SASL_SSL", "SASL_PLAINTEXT"])
def test_sasl_is_refused_where_a_listener_speaks_grpc(tmp_path: Path, protocol: str) -> None:
    mapped = {
        "listeners": "PLAINTEXT://h:2,GRPC://h:1",
        "listener.security.protocol.map": f"GRPC:{protocol}",
    }
    assert "only Kafka listeners have SASL" in refused(written(tmp_path, {**BROKER, **mapped}))


@pytest.mark.parametrize("listener", ["SASL_SSL://h:1", "SASL_PLAINTEXT://h:1", "SAFE://h:1"])
def test_brokers_need_a_mechanism_where_every_listener_has_sasl(tmp_path: Path, listener: str) -> None:
    mapped = {
        "listeners": listener,
        "listener.security.protocol.map": "SAFE:SASL_SSL",
        "ssl.keystore.location": "/k.pem",
        "sasl.enabled.mechanisms": "SCRAM-SHA-512",
    }
    line = refused(written(tmp_path, {**BROKER, **mapped}))
    assert "sasl.mechanism.inter.broker.protocol is GSSAPI: choose one of PLAIN" in line


def test_kafkas_older_names(tmp_path: Path) -> None:
    path = written(tmp_path, BROKER, node__id=None, broker__id="9", log__dirs=None, log__dir="/x")
    config = load_config(path)
    assert (config.node_id, config.log_dirs, config.passed_over) == (9, (Path("/x"),), ())
    both = load_config(written(tmp_path, BROKER, log__dir="/x", broker__id="101"))
    assert both.log_dirs == (Path("/data/a"), Path("/data/b"))


def test_a_process_names_them_once_at_its_start(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    async def serve(config: NodeConfig) -> Ending:
        return Ending(reason="served", failed=False)

    path = written(tmp_path, {**BROKER, "num.io.threads": "8", "background.threads": "10"})
    assert run_process(str(path), "broker", serve) == 0
    said = [line for line in capfd.readouterr().err.splitlines() if "num.io.threads" in line]
    assert len(said) == 1 and said[0].endswith("have no effect: background.threads, num.io.threads")


def test_a_controller_is_not_asked_which_listener_brokers_use(tmp_path: Path) -> None:
    path = with_key(tmp_path, CONTROLLER, "inter.broker.listener.name", "PLAINTEXT")
    assert load_config(path).passed_over == ("inter.broker.listener.name",)
