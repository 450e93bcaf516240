"""Files of Kafka's nodes: what is passed over, what is refused, and that it is said in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from metaquorum.config.keys import KEYS
from metaquorum.config.load import load_config
from metaquorum.config.node import NodeConfig
from metaquorum.config.security import STANDARD_AUTHORIZER
from metaquorum.errors import ConfigError
from metaquorum.metadata.settings.kafka_keys import KAFKA_KEYS
from metaquorum.node.driver import Ending
from metaquorum.node.process import run_process
from tests.unit.config.test_config import BROKER, CONTROLLER, written

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
        ("cordoned.log.dirs", "/data/a", "directories cannot be cordoned"),
        ("principal.builder.class", "a.B", "there are no plug-ins"),
        ("sasl.oauthbearer.jwt.validator.class", "a.B", "there are no plug-ins"),
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
        ("listener.name.other.max.connection.creation.rate", "5"),
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
        ("listener.name.safe.ssl.client.auth", "required", "needs listener.name.safe.ssl.truststore"),
        ("listener.name.safe.ssl.keystore.type", "JKS", "listener.name.safe.ssl.keystore.type=JKS is not"),
        ("listener.name.safe.ssl.keystore.password", "x", "a PEM file has no password"),
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
    line = refused(
        written(tmp_path, {**CONTROLLER, "cordoned.log.dirs": "/x", "delete.topic.enable": "false"})
    )
    assert "cordoned.log.dirs is not supported" in line and "; delete.topic.enable is not" in line


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


def test_the_last_of_two_lines_counts_and_the_file_says_so(tmp_path: Path) -> None:
    path = written(tmp_path, BROKER)
    with path.open("a") as file:
        file.write("num.partitions=3\nnum.partitions=7\n")
    config = load_config(path)
    assert config.number("num.partitions") == 7
    assert config.warnings == ("num.partitions is set more than once: the last line counts",)


VENDORS = (
    "confluent.ansible.managed",
    "confluent.balancer.topic.replication.factor",
    "confluent.license.topic.replication.factor",
    "confluent.metrics.reporter.bootstrap.servers",
    "confluent.telemetry.enabled",
    "cruise.control.metrics.topic.num.partitions",
    "kafka.rest.enable",
    "kerberos.auth.enable",
    "max.request.size",
    "oauth.valid.issuer.uri",
    "strimzi.authorization.kafka.cluster-name",
)
MISTAKES = {
    "advertised.listener": "advertised.listeners",
    "auto.create.topic.enable": "auto.create.topics.enable",
    "broker_rack": "broker.rack",
    "controller.quorum.voter": "controller.quorum.voters",
    "listeners.security.protocol.map": "listener.security.protocol.map",
    "log.segment.size": "log.segment.bytes",
    "metadata.log.directory": "metadata.log.dir",
    "min.insync.replica": "min.insync.replicas",
    "quorum.voters": "controller.quorum.voters",
    "retention.ms": "log.retention.ms",
    "super.user": "super.users",
}


def test_a_vendors_keys_are_ignored_and_named_once(tmp_path: Path) -> None:
    path = written(tmp_path, {**BROKER, **dict.fromkeys(VENDORS, "x")})
    config = load_config(path)
    assert config.warnings == (f"ignoring keys that neither Kafka nor metaquorum has: {', '.join(VENDORS)}",)
    assert config.passed_over == ()


@pytest.mark.parametrize("name", MISTAKES)
def test_a_likely_mistake_is_refused_with_the_name_that_was_meant(tmp_path: Path, name: str) -> None:
    line = refused(with_key(tmp_path, BROKER, name, "x"))
    assert f"{name} is not a known key: did you mean " in line
    assert MISTAKES[name] in line or name == "retention.ms"


def test_keys_of_kafka_4_are_known(tmp_path: Path) -> None:
    added = {
        "share.coordinator.state.topic.replication.factor": "1",
        "group.streams.num.standby.replicas": "1",
        "compression.zstd.level": "3",
        "remote.list.offsets.request.timeout.ms": "30000",
    }
    config = load_config(written(tmp_path, {**BROKER, **added}))
    assert config.passed_over == tuple(sorted(added))


def test_a_controller_needs_no_log_dirs_beside_its_metadata_directory(tmp_path: Path) -> None:
    config = load_config(written(tmp_path, CONTROLLER, log__dirs=None, metadata__log__dir="/m"))
    assert (config.log_dirs, config.metadata_log_dir) == ((Path("/m"),), Path("/m"))
    assert "log.dirs is missing" in refused(
        written(tmp_path, BROKER, log__dirs=None, metadata__log__dir="/m")
    )


def test_a_voters_own_entry_with_another_port_is_said(tmp_path: Path) -> None:
    voters = "1@127.0.0.1:9099,2@127.0.0.1:9094"
    keys = {"controller__quorum__voters": voters, "listeners": "CONTROLLER://127.0.0.1:9093"}
    path = written(tmp_path, CONTROLLER, **keys)
    assert load_config(path).warnings == (
        "controller.quorum.voters has 1@127.0.0.1:9099 for this node, but its listener CONTROLLER "
        "has port 9093: other nodes connect to port 9099; correct one of the two, unless something forwards "
        "the port",
    )
    advertised = {"advertised__listeners": "CONTROLLER://127.0.0.1:9099"}
    assert load_config(written(tmp_path, CONTROLLER, **keys, **advertised)).warnings == ()


def test_sasl_on_the_controllers_listener_is_refused_with_what_to_do(tmp_path: Path) -> None:
    insists = {"controller__quorum__protocol": "grpc"}
    path = written(tmp_path, BROKER, listener__security__protocol__map="CONTROLLER:SASL_SSL", **insists)
    line = refused(path)
    assert "let it speak Kafka's protocol" in line and "set ssl.client.auth=required" in line


def test_a_listener_with_stores_of_its_own_uses_them_and_the_others_the_shared_ones(tmp_path: Path) -> None:
    mapped = {
        "listeners": "IN://127.0.0.1:9092,OUT://127.0.0.1:9093",
        "listener.security.protocol.map": "IN:SSL,OUT:SSL,CONTROLLER:SSL",
        "inter.broker.listener.name": "IN",
        "ssl.keystore.location": "/shared.pem",
        "ssl.truststore.location": "/ca.pem",
        "listener.name.out.ssl.keystore.location": "/out.pem",
        "listener.name.out.ssl.client.auth": "required",
        "listener.name.controller.ssl.keystore.location": "/controllers.pem",
    }
    config = load_config(written(tmp_path, {**BROKER, **mapped}))
    places = {name: config.tls_of(name).keystore for name in ("IN", "OUT", "CONTROLLER")}
    assert places == {
        "IN": Path("/shared.pem"),
        "OUT": Path("/out.pem"),
        "CONTROLLER": Path("/controllers.pem"),
    }
    assert {config.tls_of(name).truststore for name in places} == {Path("/ca.pem")}
    assert (config.access["OUT"].client_auth, config.access["IN"].client_auth) == ("required", "none")
    assert config.passed_over == ()
