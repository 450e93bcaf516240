"""A node that environment variables configure, with the names of Kafka's container image."""

from __future__ import annotations

import logging
from pathlib import Path

import javaproperties
import pytest

from metaquorum.config.files import environment_pairs, is_a_cluster_alone, key_of, merged
from metaquorum.config.load import load_config
from metaquorum.errors import ConfigError
from metaquorum.node import process as module
from tests.unit.config.test_config import BROKER, written

NAMES = {
    "KAFKA_NODE_ID": "node.id",
    "KAFKA_CONTROLLER_QUORUM_VOTERS": "controller.quorum.voters",
    "KAFKA_LISTENER_NAME_CONTROLPLANE___9090_SSL_CLIENT_AUTH": (
        "listener.name.controlplane-9090.ssl.client.auth"
    ),
    "KAFKA_A__B_C": "a_b.c",
}


@pytest.mark.parametrize("name", NAMES)
def test_a_variables_name_is_a_key(name: str) -> None:
    assert key_of(name) == NAMES[name]


def test_only_kafkas_variables_are_keys_and_those_of_the_jvm_are_not() -> None:
    found = environment_pairs(
        {
            "KAFKA_NODE_ID": "3",
            "KAFKA_HEAP_OPTS": "-Xmx1g",
            "KAFKA_JMX_PORT": "1",
            "HOME": "/",
            "NODE_ID": "4",
        }
    )
    assert found == {"node.id": "3"}


def test_listeners_are_those_that_are_advertised_unless_they_are_set() -> None:
    advertised = {"KAFKA_ADVERTISED_LISTENERS": "A://host:9092,B://[::1]:9093"}
    assert environment_pairs(advertised)["listeners"] == "A://0.0.0.0:9092,B://0.0.0.0:9093"
    listening = {**advertised, "KAFKA_LISTENERS": "A://:1"}
    assert environment_pairs(listening)["listeners"] == "A://:1"


def test_files_of_stores_are_in_the_folder_of_secrets_and_passwords_are_refused() -> None:
    found = environment_pairs({"KAFKA_SSL_KEYSTORE_FILENAME": "node.pem"})
    assert found == {"ssl.keystore.location": "/etc/kafka/secrets/node.pem"}
    with pytest.raises(ConfigError, match="KAFKA_SSL_KEY_CREDENTIALS is not supported: PEM files have no"):
        environment_pairs({"KAFKA_SSL_KEY_CREDENTIALS": "x"})


def test_the_environment_goes_before_the_file_and_directories_have_a_default() -> None:
    found = merged({"node.id": "1", "num.partitions": "2"}, {"KAFKA_NODE_ID": "9"}, "/data")
    assert found == {"node.id": "9", "num.partitions": "2", "log.dirs": "/data"}
    assert "log.dirs" not in merged({"metadata.log.dir": "/m"}, {}, "/data")


def test_without_any_configuration_it_is_a_cluster_that_a_file_may_describe(tmp_path: Path) -> None:
    pairs = merged({}, {"PATH": "/bin"}, "/data")
    path = tmp_path / "node.properties"
    path.write_text(javaproperties.dumps(pairs, timestamp=False))
    config = load_config(path)
    assert (config.role, config.node_id, config.log_dirs) == ("combined", 1, (Path("/data"),))
    assert config.warnings == ()
    assert is_a_cluster_alone(pairs)


ALONE = {
    "one voter": ({"process.roles": "controller", "controller.quorum.voters": "1@h:1"}, True),
    "itself to ask": ({"process.roles": "controller", "controller.quorum.bootstrap.servers": "h:1"}, True),
    "one voter and a comma": ({"process.roles": "controller", "controller.quorum.voters": "1@h:1, "}, True),
    "three voters": ({"process.roles": "controller", "controller.quorum.voters": "1@h:1,2@i:1,3@j:1"}, False),
    "a broker": ({"process.roles": "broker", "controller.quorum.voters": "1@h:1"}, False),
    "nothing": ({}, False),
}


@pytest.mark.parametrize("name", ALONE)
def test_only_a_single_controller_is_a_cluster_alone(name: str) -> None:
    pairs, alone = ALONE[name]
    assert is_a_cluster_alone(pairs) is alone


# Names of controllers that do not resolve: said at the start of a node, which goes on.


def test_each_unknown_host_is_named_once_with_its_key_and_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    voters = "1@nowhere.invalid:9093,2@127.0.0.1:9093,3@nowhere.invalid:9094"
    path = written(tmp_path, BROKER, controller__quorum__voters=voters)
    monkeypatch.setattr(module, "_problem", lambda host: "no such name" if "invalid" in host else None)
    with caplog.at_level(logging.WARNING):
        thread = module.warn_of_unknown_names(load_config(path))
        thread.join(10)
    assert not thread.is_alive(), "the names were looked up"
    assert caplog.messages == [
        f"{path}: controller.quorum.voters names nowhere.invalid, which does not resolve (no such name): "
        "correct the name, or the name service"
    ]


def test_a_name_that_cannot_be_one_is_a_reason_not_an_error() -> None:
    assert module._problem("a" * 80 + ".example")
    assert module._problem("127.0.0.1") is None
