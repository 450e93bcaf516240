"""Which protocol a listener of controllers speaks, and by which a node asks: every combination in a file."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from metaquorum.config.load import load_config
from metaquorum.config.node import NodeConfig
from metaquorum.errors import ConfigError
from tests.unit.config.test_config import BROKER, CONTROLLER, written

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
