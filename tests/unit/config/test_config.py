"""Configuration files: what they become, and the one line for each way in which they can be wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from metaquorum.broker.replica.topic_settings import topic_settings
from metaquorum.config.docs import configuration_page
from metaquorum.config.keys import KEYS
from metaquorum.config.load import load_config
from metaquorum.errors import ConfigError
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.node_configs import ControllerConfig
from metaquorum.metadata.records.types import ControllerEndpoint
from metaquorum.metadata.settings.broker_keys import TOPIC_DEFAULTS
from metaquorum.metadata.settings.kafka_keys import KAFKA_KEYS, is_kafkas
from metaquorum.metadata.settings.keys import BROKER as BROKER_ROLE
from metaquorum.metadata.settings.keys import Kind, value_text
from metaquorum.raft.config import RaftConfig, Voter
from metaquorum.storage.uuids import uuid_to_text

REPOSITORY = Path(__file__).resolve().parents[3]
DIRECTORY = bytes(range(1, 17))
CONTROLLER = {
    "process.roles": "controller",
    "node.id": "1",
    "listeners": "CONTROLLER://127.0.0.1:9093",
    "controller.quorum.voters": f"1@127.0.0.1:9093:{uuid_to_text(DIRECTORY)},2@127.0.0.1:9094,3@[::1]:9095",
    "log.dirs": "/data/a",
}
BROKER = {
    "process.roles": "broker",
    "node.id": "101",
    "listeners": "PLAINTEXT://127.0.0.1:9092",
    "controller.quorum.voters": "1@127.0.0.1:9093,2@127.0.0.1:9094",
    "log.dirs": "/data/a, /data/b",
}


def written(tmp_path: Path, pairs: dict[str, str], **changes: str | None) -> Path:
    """A file of `pairs`; a change to None removes the key. Dots are written `__` in the names of changes."""
    merged: dict[str, str | None] = {**pairs, **{k.replace("__", "."): v for k, v in changes.items()}}
    path = tmp_path / "node.properties"
    path.write_text("".join(f"{name}={value}\n" for name, value in merged.items() if value is not None))
    return path


def test_a_controllers_file(tmp_path: Path) -> None:
    path = written(tmp_path, CONTROLLER, broker__session__timeout__ms="4000", num__partitions="7")
    config = load_config(path, "controller")
    assert config.voters == (
        Voter(node_id=1, host="127.0.0.1", port=9093, directory_id=DIRECTORY),
        Voter(node_id=2, host="127.0.0.1", port=9094),
        Voter(node_id=3, host="::1", port=9095),
    )
    assert config.metadata_log_dir == Path("/data/a")
    assert config.raft == RaftConfig(high_watermark_linger_ms=10)
    assert config.controller("c", ()) == ControllerConfig(
        cluster_id="c",
        node_id=1,
        broker_session_timeout_ms=4000,
        num_partitions=7,
        endpoints=(ControllerEndpoint("CONTROLLER", "127.0.0.1", 9093, 0),),
    )
    assert config.set_in_file({"broker.session.timeout.ms", "log.level", "ssl.client.auth"}) == {
        "broker.session.timeout.ms": "4000"
    }
    assert (config.retention.max_bytes, config.retention.max_ms) == (100 * 1024 * 1024, 604_800_000)


@pytest.mark.parametrize("roles", ["controller", "broker,controller"])
def test_a_file_of_an_earlier_build_says_what_to_change(tmp_path: Path, roles: str) -> None:
    """Its controllers asked each other over gRPC."""
    both = "CONTROLLER://127.0.0.1:9093,PLAINTEXT://127.0.0.1:9092"
    file = {**CONTROLLER, "controller.quorum.protocol": "grpc"}
    if "broker" in roles:
        file |= {"process.roles": roles, "listeners": both}
    with pytest.raises(ConfigError) as caught:
        load_config(written(tmp_path, file))
    line = str(caught.value)
    assert "controllers ask each other by Kafka's protocol; remove the line" in line and "\n" not in line
    del file["controller.quorum.protocol"]
    config = load_config(written(tmp_path, file))
    assert config.quorum_speaks_kafka and 9093 in [each.port for each in config.kafka_listeners]


def test_a_quorum_may_speak_kafkas_protocol(tmp_path: Path) -> None:
    both = {
        "listeners": "GRPC://127.0.0.1:9093,KAFKA://127.0.0.1:9095",
        "controller__listener__names": "GRPC,KAFKA",
    }
    config = load_config(written(tmp_path, CONTROLLER, **both))
    assert config.quorum_speaks_kafka and config.controller_listener == "KAFKA"
    assert config.controllers_login is None
    both |= {
        "listener__security__protocol__map": "KAFKA:SASL_PLAINTEXT",
        "sasl__enabled__mechanisms": "SCRAM-SHA-256",
    }
    with pytest.raises(ConfigError, match=r"controller\.protocol is GSSAPI: choose one of PLAIN"):
        load_config(written(tmp_path, CONTROLLER, **both))
    both["sasl__mechanism__controller__protocol"] = "PLAIN"
    with pytest.raises(ConfigError, match=r"PLAIN is not among sasl\.enabled\.mechanisms"):
        load_config(written(tmp_path, CONTROLLER, **both))
    both["sasl__mechanism__controller__protocol"] = "SCRAM-SHA-256"
    with pytest.raises(ConfigError, match="is missing: voters log in to each other with SCRAM-SHA-256"):
        load_config(written(tmp_path, CONTROLLER, **both))


@pytest.mark.parametrize("names", ["CONTROLLER,GRPC", "GRPC,CONTROLLER", "Controller,Grpc_1"])
def test_names_say_what_controllers_listeners_speak(tmp_path: Path, names: str) -> None:
    kafka, grpc = sorted(names.upper().split(","), key=lambda name: name.startswith("GRPC"))
    both = {
        "listeners": f"{grpc}://127.0.0.1:9095,{kafka}://127.0.0.1:9093",
        "controller__listener__names": names,
    }
    config = load_config(written(tmp_path, CONTROLLER, **both))
    assert config.quorum_speaks_kafka and config.controller_listener == kafka
    assert config.grpc_controller_listener == grpc
    assert [each.port for each in config.grpc_listeners] == [9095]
    assert [each.port for each in config.kafka_listeners] == [9093]
    assert [each.name for each in config.advertised] == [kafka, grpc]
    # A broker's own names do not say what it asks by.
    broker = {"controller__listener__names": names}
    assert load_config(written(tmp_path, BROKER, **broker)).controller_listener == grpc
    broker["controller__quorum__protocol"] = "grpc"
    assert load_config(written(tmp_path, BROKER, **broker)).controller_listener == grpc
    broker["controller__quorum__protocol"] = "kafka"
    assert load_config(written(tmp_path, BROKER, **broker)).controller_listener == kafka


@pytest.mark.parametrize(
    ("protocol", "names", "text"),
    [
        (None, "GRPC", "need a listener in controller.listener.names that speaks Kafka's protocol"),
        ("kafka", "GRPC,GRPC2", "its name does not begin with GRPC"),
    ],
)
def test_a_protocol_needs_a_listener_of_controllers(
    tmp_path: Path, protocol: str | None, names: str, text: str
) -> None:
    listeners = ",".join(f"{name}://127.0.0.1:{9093 + at}" for at, name in enumerate(names.split(",")))
    changes = {"listeners": listeners, "controller__listener__names": names}
    with pytest.raises(ConfigError, match=text):
        load_config(written(tmp_path, CONTROLLER, **changes, controller__quorum__protocol=protocol))


def test_a_controller_joins_by_itself_with_kafkas_listener_alone(tmp_path: Path) -> None:
    config = load_config(written(tmp_path, CONTROLLER, controller__quorum__auto__join__enable="true"))
    assert config.grpc_controller_listener is None and not config.warnings
    assert config.flag("controller.quorum.auto.join.enable")


def test_a_brokers_file(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        BROKER,
        advertised__listeners="PLAINTEXT://broker.example:19092",
        broker__rack="r1",
        metadata__log__dir="/data/m",
        metadata__max__retention__ms="-1",
    )
    config = load_config(path)
    broker = config.broker("c", (DIRECTORY,), ())
    assert [(one.name, one.host, one.port, one.security_protocol) for one in broker.endpoints] == [
        ("PLAINTEXT", "broker.example", 19092, 0)
    ]
    assert (broker.rack, broker.directories) == ("r1", (DIRECTORY,))
    assert config.log_dirs == (Path("/data/a"), Path("/data/b"))
    assert config.metadata_log_dir == Path("/data/m")
    assert config.retention.max_ms is None


def test_a_listener_without_a_host(tmp_path: Path) -> None:
    """Kafka's usual form: it listens on every interface, and is known by the name of the machine."""
    config = load_config(written(tmp_path, BROKER, listeners="PLAINTEXT://:9092")).with_host_name(
        lambda: "b7"
    )
    assert [(each.host, each.port) for each in config.listeners] == [("", 9092)]
    assert [(each.host, each.port) for each in config.broker("c", (), ()).endpoints] == [("b7", 9092)]
    config = load_config(written(tmp_path, CONTROLLER, listeners="CONTROLLER://:9093"))
    named = config.with_host_name(lambda: "c1").controller("c", ())
    assert named.endpoints == (ControllerEndpoint("CONTROLLER", "c1", 9093, 0),)


def test_a_host_that_is_named_is_kept(tmp_path: Path) -> None:
    def nobody() -> str:
        raise AssertionError("the name of the machine is asked for")

    path = written(tmp_path, BROKER, listeners="PLAINTEXT://:1", advertised__listeners="PLAINTEXT://here:1")
    config = load_config(path).with_host_name(nobody)
    assert [each.host for each in config.advertised] == ["here"]


def test_a_brokers_id_may_be_known_by_the_machine(tmp_path: Path) -> None:
    path = written(tmp_path, BROKER, listeners="PLAINTEXT://:1", broker__id__generation__enable="true")
    assert "nothing binds this broker's id; remove the line" in "".join(load_config(path).warnings)
    assert load_config(path).with_host_name(lambda: "b7").binding_key is None
    path.write_text(path.read_text() + "controller.quorum.protocol=grpc\n")
    assert load_config(path).with_host_name(lambda: "b7").binding_key == "b7"


def test_every_raft_setting_has_its_key(tmp_path: Path) -> None:
    """A key for a field that was forgotten in the mapping would change nothing."""
    plain = load_config(written(tmp_path, CONTROLLER)).raft
    changed = set()
    for key in KEYS.values():
        if not key.name.startswith("controller.quorum.") or key.kind is not Kind.INT:
            continue
        assert isinstance(key.default, int)
        pairs = {**CONTROLLER, "controller.quorum.fetch.timeout.ms": "5000", key.name: str(key.default + 1)}
        raft = load_config(written(tmp_path, pairs)).raft
        fields = {name for name in RaftConfig.__slots__ if getattr(raft, name) != getattr(plain, name)}
        changed |= fields - {"fetch_timeout_ms"} or fields
    internal = {"parked_fetches_max", "pending_reads_max", "observer_session_ms"}
    internal |= {"note_committed_ms", "sync_committed_ms"}
    internal |= {"bootstrap_ids"}  # one for each of controller.quorum.bootstrap.servers
    internal |= {"new_voter_lag_max"}
    assert changed == set(RaftConfig.__slots__) - internal


BAD = [
    (CONTROLLER, {"node__id": "9"}, "node.id=9 is not among controller.quorum.voters (1, 2, 3)"),
    (BROKER, {"node__id": "2"}, "node.id=2 is a controller's id"),
    (CONTROLLER, {"node__id": None}, "node.id is missing"),
    (
        BROKER,
        {"group__consumer__session__timeout__ms": "44999"},
        "group.consumer.min.session.timeout.ms=45000 is above group.consumer.session.timeout.ms=44999",
    ),
    (
        BROKER,
        {"group__consumer__max__heartbeat__interval__ms": "4000"},
        "group.consumer.heartbeat.interval.ms=5000 is above group.consumer.max.heartbeat.interval.ms=4000",
    ),
    (
        CONTROLLER,
        {"node__id": "one"},
        "node.id cannot be 'one': write a whole number from 0 to 2147483647",
    ),
    (CONTROLLER, {"node__id": "-1"}, "node.id cannot be '-1': write a whole number from 0"),
    (CONTROLLER, {"process__roles": "worker"}, "choose controller, broker or both"),
    (BROKER, {"listeners": "CONTROLLER://h:1"}, "controller.listener.names gives to controllers"),
    (CONTROLLER, {"listeners": "CONTROLLER://127.0.0.1:99999"}, "a port is a number from 1 to 65535"),
    (CONTROLLER, {"listeners": "127.0.0.1:9093"}, "write NAME://host:port"),
    (CONTROLLER, {"listeners": "CONTROLLER://a..b:9093"}, "'CONTROLLER://a..b:9093': a host name has"),
    (BROKER, {"advertised__listeners": f"PLAINTEXT://{'a' * 64}.b:1"}, "from 1 to 63 characters"),
    (CONTROLLER, {"controller__quorum__voters": "1@a..b:1"}, "has '1@a..b:1': a host name"),
    (CONTROLLER, {"metrics__listener": "http://a..b:1"}, "metrics.listener has 'http://a..b:1': a host name"),
    (
        BROKER,
        {"max__connections__per__ip__overrides": "a..b:1"},
        "max.connections.per.ip.overrides has 'a..b:1': a host name",
    ),
    (
        CONTROLLER,
        {"listeners": "PLAINTEXT://127.0.0.1:9093"},
        "a controller needs a listener named CONTROLLER",
    ),
    (
        CONTROLLER,
        {
            "listeners": "CONTROLLER://127.0.0.1:9093,KAFKA://127.0.0.1:9095",
            "listener__security__protocol__map": "KAFKA:PLAINTEXT",
        },
        "KAFKA, which controller.listener.names does not have: add it there, after CONTROLLER",
    ),
    (BROKER, {"listeners": "PLAINTEXT://h:1,PLAINTEXT://h:2"}, "uses a name twice"),
    (BROKER, {"listeners": "PLAINTEXT://h:1,GRPC://h:1"}, "uses an address twice"),
    (BROKER, {"listeners": "PLAINTEXT://:1,GRPC://h:1"}, "uses an address twice"),
    (BROKER, {"listeners": "PLAINTEXT://0.0.0.0:1"}, "PLAINTEXT://0.0.0.0:1 cannot be advertised"),
    (
        BROKER,
        {"listeners": "PLAINTEXT://:1", "advertised__listeners": "PLAINTEXT://[::]:1"},
        "cannot be advertised",
    ),
    (BROKER, {"controller__listener__names": ""}, "controller.listener.names is empty"),
    (BROKER, {"advertised__listeners": "GRPC2://h:1"}, "which listeners does not have"),
    (CONTROLLER, {"controller__quorum__voters": "1@h:1,1@h:2"}, "has node 1 twice"),
    (CONTROLLER, {"controller__quorum__voters": "1@h:1,2@h:1"}, "has h:1 twice"),
    (CONTROLLER, {"controller__quorum__voters": "1@h"}, "write id@host:port:directory-id"),
    (CONTROLLER, {"controller__quorum__voters": "1@h:0"}, "a port is a number from 1 to 65535"),
    (CONTROLLER, {"controller__quorum__voters": "1@h:1:abc"}, "controller.quorum.voters has '1@h:1:abc'"),
    (CONTROLLER, {"log__dirs": "/a,/a"}, "log.dirs names a directory twice"),
    (CONTROLLER, {"broker__sesion__timeout__ms": "1"}, "did you mean broker.session.timeout.ms?"),
    (CONTROLLER, {"log__dris": "/a"}, "log.dris is not a known key: did you mean log.dirs?"),
    (
        CONTROLLER,
        {"zookeeper__connect": "h:2181"},
        "zookeeper.connect is not supported: remove the line",
    ),
    (
        CONTROLLER,
        {"log__flush__before__ack": "true"},
        "log.flush.before.ack is for a broker, but this is a controller",
    ),
    (
        CONTROLLER,
        {"colour": "red", "log__dris": "/a", "node__ids": "1"},
        "log.dris (did you mean log.dirs?), node.ids (did you mean node.id?) are not known keys",
    ),
    (BROKER, {"offsets__topic__num__partition": "1"}, "did you mean offsets.topic.num.partitions?"),
    (BROKER, {"broker__id": "7"}, "broker.id=7, but node.id=101: remove the line with broker.id"),
    (
        CONTROLLER,
        {"broker__session__timeout__ms": "0"},
        "cannot be '0': write a whole number from 1 to 2147483647 ms",
    ),
    (CONTROLLER, {"metadata__log__segment__bytes": "10"}, "from 1048576 to 2147483647 bytes"),
    (CONTROLLER, {"log__format": "xml"}, "log.format cannot be 'xml': choose from text, json"),
    (CONTROLLER, {"controller__quorum__fetch__max__wait__ms": "900"}, "must be at most half of"),
    (BROKER, {"broker__heartbeat__interval__ms": "20000"}, "registration.lease.timeout.ms"),
    (
        CONTROLLER,
        {"listener__security__protocol__map": "CONTROLLER:SASL"},
        "write NAME:PROTOCOL, with one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL",
    ),
    (CONTROLLER, {"listener__security__protocol__map": "CONTROLLER:SSL"}, "ssl.keystore.location is missing"),
    (CONTROLLER, {"ssl__client__auth": "required"}, "but no listener is SSL"),
    (
        CONTROLLER,
        {"ssl__keystore__type": "JKS", "ssl__keystore__location": "/a.jks"},
        "ssl.keystore.type=JKS is not read here",
    ),
    (BROKER, {"queued__max__request__bytes": "-2"}, "bytes, or -1"),
]


@pytest.mark.parametrize("pairs", [CONTROLLER, BROKER], ids=["controller", "broker"])
def test_the_least_value_that_a_key_allows_is_allowed_by_the_node_too(
    tmp_path: Path, pairs: dict[str, str]
) -> None:
    """The range of a key is said once, in its table. A rule between two keys may still refuse."""
    tried = 0
    for key in KEYS.values():
        if pairs["process.roles"] not in key.roles or key.minimum is None or key.name in pairs:
            continue
        path = written(tmp_path, {**pairs, key.name: str(key.minimum)})
        tried += 1
        try:
            config = load_config(path)
            config.controller("c", ()) if pairs is CONTROLLER else config.broker("c", (DIRECTORY,), ())
        except ConfigError as error:
            assert f"{key.name} is {key.minimum}: set it to" not in str(error)
    assert tried > 20


def test_a_brokers_metadata_snapshots_may_be_due_by_size_alone(tmp_path: Path) -> None:
    path = written(tmp_path, BROKER, metadata__log__max__snapshot__interval__ms="0")
    broker = load_config(path).broker("c", (DIRECTORY,), ())
    assert broker.metadata_replica.metadata_log_max_snapshot_interval_ms == 0


@pytest.mark.parametrize(("pairs", "changes", "text"), BAD, ids=lambda value: str(value)[:40])
def test_a_bad_file_is_one_clear_line(
    tmp_path: Path, pairs: dict[str, str], changes: dict[str, str | None], text: str
) -> None:
    path = written(tmp_path, pairs, **changes)
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    line = str(caught.value)
    assert line.startswith(f"{path}: ") and text in line and "\n" not in line


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "is empty"),
        (b"# only a comment\n", "is empty"),
        (b"\xff\xfe", "is not UTF-8 text"),
        (b"node.id=\\u12\n", "is not a .properties file"),
        (b"x" * (1024 * 1024 + 1), "larger than 1 MiB"),
    ],
)
def test_a_file_that_is_no_configuration(tmp_path: Path, content: bytes, text: str) -> None:
    path = tmp_path / "node.properties"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=text):
        load_config(path)


def test_a_file_that_is_not_there_or_a_directory(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load_config(tmp_path / "absent")
    with pytest.raises(ConfigError, match="Is a directory"):
        load_config(tmp_path)


def test_the_wrong_program_for_a_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a broker was started"):
        load_config(written(tmp_path, CONTROLLER), "broker")


def test_defaults_are_within_their_own_ranges() -> None:
    for key in KEYS.values():
        if key.default not in (None, ()):
            assert key.parse(value_text(key.default)) == key.default
    assert {name for name, key in KEYS.items() if not key.own} <= KAFKA_KEYS
    assert not any(is_kafkas(name) for name, key in KEYS.items() if key.own)


def test_the_page_about_configuration_is_current() -> None:
    page = (REPOSITORY / "docs" / "configuration.md").read_text()
    assert page == configuration_page(), "run: python -m metaquorum.config.docs > docs/configuration.md"


def test_what_topics_have_that_set_nothing(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        BROKER,
        message__max__bytes="5000",
        log__retention__hours="-1",
        log__retention__minutes="90",
        log__message__timestamp__type="logappendtime",
        log__segment__bytes=str(1024**3),
    )
    assert load_config(path).replicas().topic_defaults == {
        "message.max.bytes": "5000",
        "log.retention.hours": "-1",
        "log.retention.minutes": "90",
        "log.message.timestamp.type": "LogAppendTime",
    }
    assert load_config(written(tmp_path, BROKER)).replicas().topic_defaults == {}
    path = written(tmp_path, CONTROLLER, unclean__leader__election__enable="TRUE")
    assert load_config(path).controller("c", ()).unclean_leader_election_enable


def test_the_files_defaults_of_topics_are_those_of_their_own_keys() -> None:
    """What is set to what Kafka has anyway changes nothing: the table's defaults are the topics' ones."""
    settings = topic_settings(MetadataImage(), "logs")
    for key in TOPIC_DEFAULTS:
        if key.default is not None and BROKER_ROLE in key.roles:
            static = {key.name: value_text(key.default)}
            assert topic_settings(MetadataImage(), "logs", static=static) == settings, key.name


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("message.max.bytes", "-1", "write a whole number from 0 to 2147483647 bytes"),
        ("log.segment.bytes", "13", "write a whole number from 14 to 2147483647 bytes"),
        ("log.retention.ms", "-2", "write a whole number from -1 to 9223372036854775807 ms"),
        ("min.insync.replicas", "0", "write a whole number from 1"),
        ("log.cleanup.policy", "keep", "choose from compact, delete"),
        ("message.max.bytes", "200000000", "must be below socket.request.max.bytes"),
    ],
)
def test_defaults_of_topics_that_cannot_be(tmp_path: Path, name: str, value: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        load_config(written(tmp_path, BROKER, **{name.replace(".", "__"): value}))


def test_a_broker_may_ask_controllers_by_kafkas_protocol(tmp_path: Path) -> None:
    # As in Kafka's own file: one name.
    config = load_config(written(tmp_path, BROKER))
    assert config.controllers_login is None and not config.controllers_use_tls
    assert config.number("broker.session.timeout.ms") == 9_000
    generates = {"broker__id__generation__enable": "true", "node__id": None}
    # Only gRPC gives ids.
    assert load_config(written(tmp_path, BROKER, **generates)).grpc_controller_listener == "CONTROLLER"
    generates["controller__quorum__protocol"] = "kafka"
    with pytest.raises(
        ConfigError, match=r"needs controller\.quorum\.protocol=grpc: Kafka's protocol cannot"
    ):
        load_config(written(tmp_path, BROKER, **generates))


def test_a_brokers_login_at_controllers(tmp_path: Path) -> None:
    """The keys are those of Kafka's own file; the mechanisms of the listener are the controllers' matter."""
    secured = {"listener__security__protocol__map": "CONTROLLER:SASL_PLAINTEXT,PLAINTEXT:PLAINTEXT"}
    with pytest.raises(ConfigError, match=r"brokers ask controllers on CONTROLLER, .* GSSAPI: choose one of"):
        load_config(written(tmp_path, BROKER, **secured))
    secured["sasl__mechanism__controller__protocol"] = "SCRAM-SHA-256"
    with pytest.raises(ConfigError, match="is missing: brokers log in to controllers with SCRAM-SHA-256"):
        load_config(written(tmp_path, BROKER, **secured))
    line = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="b" password="p";'
    secured["listener__name__controller__scram-sha-256__sasl__jaas__config"] = line
    config = load_config(written(tmp_path, BROKER, **secured))
    login = config.controllers_login
    assert login is not None and (login.mechanism, login.user, login.password) == ("SCRAM-SHA-256", "b", "p")
    assert not config.passed_over
    secured["controller__quorum__protocol"] = "grpc"
    with pytest.raises(ConfigError, match="but speaks gRPC, and only Kafka listeners have SASL"):
        load_config(written(tmp_path, BROKER, **secured))
