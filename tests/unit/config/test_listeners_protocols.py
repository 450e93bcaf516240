"""Which protocol a listener of controllers speaks, and by which a node asks: every combination in a file."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from metaquorum.config.addresses import Listener
from metaquorum.config.load import check_closed, load_config
from metaquorum.config.node import NodeConfig
from metaquorum.errors import ConfigError
from tests.unit.config.test_config import BROKER, CONTROLLER, written
from tests.unit.server.nodes import new_site

PORTS = {"CONTROLLER": 9093, "GRPC": 9094, "KAFKA": 9095, "GRPC_TWO": 9096}
NAMES = (
    *("CONTROLLER", "GRPC", "CONTROLLER,KAFKA", "GRPC,CONTROLLER", "CONTROLLER,GRPC", "GRPC,GRPC_TWO"),
    *("CONTROLLER,KAFKA,GRPC", "GRPC_TWO,CONTROLLER,GRPC,KAFKA"),
)
FILES = [(names.split(","), key) for names, key in product(NAMES, (None, "grpc", "kafka"))]


def of_grpc(names: list[str], key: str | None) -> list[str]:
    """The listeners that speak gRPC, as the page says it."""
    named = [name for name in names if name.startswith("GRPC")]
    return named or (names[:1] if key == "grpc" else [])


def first_asked(names: list[str], key: str | None, *, prefers: str) -> str | None:
    """The listener that a node asks on; None: there is none for the protocol that the file insists on.
    `prefers`: the protocol where the file says none; controllers have no other one."""
    grpc = of_grpc(names, key)
    kafka = [name for name in names if name not in grpc]
    by = {"grpc": grpc[:1], "kafka": kafka[:1]}
    other = "kafka" if prefers == "grpc" else "grpc"
    found = by[key] if key is not None else by[prefers] or by[other]
    return found[0] if found else None


def listeners(names: list[str]) -> str:
    return ",".join(f"{name}://127.0.0.1:{PORTS[name]}" for name in names)


def loaded(path: Path, names: list[str], key: str | None, *, prefers: str) -> NodeConfig | None:
    """The configuration, which asks where it should; None: it is refused, because it has to be."""
    first = first_asked(names, key, prefers=prefers)
    if first is None:
        with pytest.raises(ConfigError, match="its name does not begin with GRPC"):
            load_config(path)
        return None
    config = load_config(path)
    assert config.controller_listener == first
    assert config.quorum_speaks_kafka is (first not in of_grpc(names, key))
    return config


def of_controllers(path: Path, names: list[str], key: str | None) -> NodeConfig | None:
    """The configuration of a node that votes; None: it is refused, because it has to be."""
    if key == "grpc":
        with pytest.raises(ConfigError, match="controllers ask each other by Kafka's protocol"):
            load_config(path)
        return None
    return loaded(path, names, "kafka", prefers="kafka")


@pytest.mark.parametrize(("names", "key"), FILES)
def test_a_controllers_listeners(tmp_path: Path, names: list[str], key: str | None) -> None:
    file = {**CONTROLLER, "listeners": listeners(names), "controller.listener.names": ",".join(names)}
    path = written(tmp_path, file, controller__quorum__protocol=key)
    config = of_controllers(path, names, key)
    if config is not None:
        assert {each.name for each in config.grpc_listeners} == set(of_grpc(names, key))
        assert {each.name for each in config.kafka_listeners} == set(names) - set(of_grpc(names, key))
        assert config.listeners[0].name == config.controller_listener


@pytest.mark.parametrize(("names", "key"), FILES)
def test_what_a_broker_asks_by(tmp_path: Path, names: list[str], key: str | None) -> None:
    file = {**BROKER, "controller.listener.names": ",".join(names)}
    config = loaded(written(tmp_path, file, controller__quorum__protocol=key), names, key, prefers="grpc")
    if config is not None:
        assert config.grpc_controller_listener == next(iter(of_grpc(names, key)), None)


@pytest.mark.parametrize(("names", "key"), FILES)
def test_a_combined_nodes_listeners(tmp_path: Path, names: list[str], key: str | None) -> None:
    file = {
        **CONTROLLER,
        "process.roles": "broker,controller",
        "listeners": f"{listeners(names)},PLAINTEXT://127.0.0.1:9092",
        "controller.listener.names": ",".join(names),
    }
    path = written(tmp_path, file, controller__quorum__protocol=key)
    config = of_controllers(path, names, key)
    if config is not None:
        assert {each.name for each in config.grpc_listeners} == set(of_grpc(names, key))


# Names and protocols of listeners as Kafka reads them, and that no listener is open by mistake.


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
