"""Names and protocols of listeners as Kafka reads them, and that no listener is open by mistake."""

from __future__ import annotations

from pathlib import Path

import pytest

from metaquorum.config.addresses import Listener
from metaquorum.config.load import check_closed, load_config
from metaquorum.config.node import NodeConfig
from metaquorum.errors import ConfigError
from tests.unit.server.nodes import new_site


def load(folder: Path, listeners: str | None, protocols: str = "", **keys: str) -> NodeConfig:
    found = {key.replace("_", "."): value for key, value in keys.items()}
    if protocols:
        found["listener.security.protocol.map"] = protocols
    path = new_site(folder).broker_file({"listeners": listeners or "PLAINTEXT://:1", **found})
    if listeners is None:
        lines = path.read_text("utf-8").splitlines(keepends=True)
        path.write_text("".join(line for line in lines if not line.startswith("listeners")), "utf-8")
    return load_config(path)


@pytest.mark.parametrize(
    ("listeners", "protocols"),
    [
        ("client://127.0.0.1:9", "CLIENT:SSL"),
        ("CLIENT://127.0.0.1:9", "client:ssl"),
        ("ssl://127.0.0.1:9", ""),
    ],
)
def test_names_and_protocols_are_in_capitals(tmp_path: Path, listeners: str, protocols: str) -> None:
    config = load(tmp_path, listeners, protocols, ssl_keystore_location="node.pem")
    (listener,) = config.kafka_listeners
    assert (listener.name, listener.protocol) == (listeners.partition(":")[0].upper(), "SSL")
    assert config.inter_broker_listener == listener


def test_a_listener_that_the_map_does_not_have_is_refused_and_not_open_to_all(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"protocol\.map does not have the listener CLIENTS"):
        load(tmp_path, "clients://127.0.0.1:9", "CLIENT:SASL_SSL,PLAINTEXT:PLAINTEXT")


def test_a_name_that_begins_with_grpc_needs_no_entry(tmp_path: Path) -> None:
    config = load(tmp_path, "PLAINTEXT://127.0.0.1:9,grpc2://127.0.0.1:8")
    assert [(each.name, each.protocol) for each in config.grpc_listeners] == [("GRPC2", "PLAINTEXT")]


def test_brokers_find_their_listener_whatever_its_case(tmp_path: Path) -> None:
    listeners, protocols = "In://127.0.0.1:9,out://127.0.0.1:8", "IN:PLAINTEXT,OUT:PLAINTEXT"
    config = load(tmp_path, listeners, protocols, inter_broker_listener_name="out")
    assert config.inter_broker_listener is not None and config.inter_broker_listener.name == "OUT"


def test_a_zone_is_part_of_an_ipv6_address(tmp_path: Path) -> None:
    config = load(tmp_path, "PLAINTEXT://[fe80::1%eth0]:9")
    assert config.kafka_listeners[0].host == "fe80::1%eth0"


def test_port_0_is_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="port 0 is not supported, because nodes register their port"):
        load(tmp_path, "PLAINTEXT://127.0.0.1:0")


def test_a_broker_without_listeners_has_kafkas_which_is_open(tmp_path: Path) -> None:
    config = load(tmp_path, None)
    assert config.kafka_listeners == (Listener(name="PLAINTEXT", host="", port=9092, protocol="PLAINTEXT"),)
    line = check_closed(config, lambda host: [])
    assert line is not None and "every interface:9092 takes clients of other machines" in line


def test_connections_may_be_idle_for_good(tmp_path: Path) -> None:
    assert (
        load(tmp_path, "PLAINTEXT://:1", connections_max_idle_ms="-1").number("connections.max.idle.ms") == -1
    )
