"""The table of keys says each thing once: a default, a range, the text about a wrong value."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from metaquorum.config.keys import GROUPS, KEYS
from metaquorum.config.load import load_config
from metaquorum.config.node import NodeConfig
from metaquorum.errors import ConfigError
from metaquorum.metadata.node_configs import ControllerConfig
from metaquorum.metadata.settings.broker_keys import BROKER_KEYS, SHARED_KEYS, check_broker_value
from metaquorum.metadata.settings.keys import (
    ConfigValueError,
    Kind,
    UpdateMode,
    defaults_of,
    rows_of,
    value_text,
)

NODE = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "listeners": "PLAINTEXT://here:9092,CONTROLLER://here:9093",
    "controller.quorum.voters": "1@here:9093",
    "log.dirs": "/data",
}
OTHERWISE = {
    # A node's clients soon send more; a library's user says so if it is the same there.
    "RaftConfig.high_watermark_linger_ms",
    # About this node, not about what its file leaves out.
    "BrokerConfig.directories",
    "ControllerConfig.endpoints",
    "BrokerConfig.metadata_replica",
}
NUMBERS = [
    name for name in BROKER_KEYS if name in KEYS and KEYS[name].kind in (Kind.INT, Kind.LONG, Kind.DOUBLE)
]


def loaded(directory: Path, **changes: str) -> NodeConfig:
    path = directory / "node.properties"
    path.write_text("".join(f"{name}={value}\n" for name, value in {**NODE, **changes}.items()))
    return load_config(path)


def built(config: NodeConfig) -> Iterator[Any]:
    """Every configuration class that a node's file fills."""
    controller, broker = config.of("controller").controller("c", ()), config.of("broker")
    yield from (config.raft, config.log, controller, controller.metadata_replica, controller.group_bounds)
    core, coordinators = broker.broker("c", (bytes(16),), ()), broker.coordinators()
    yield from (core, core.metadata_replica, broker.replicas())
    yield from (coordinators, coordinators.groups, coordinators.transactions)


def test_a_file_that_sets_nothing_leaves_every_class_at_its_defaults(tmp_path: Path) -> None:
    compared = 0
    for config in built(loaded(tmp_path)):
        cls = type(config)
        for field, default in defaults_of(cls).items():
            if f"{cls.__name__}.{field}" not in OTHERWISE and cls.__name__ != "MetadataReplicaConfig":
                assert getattr(config, field) == default, (cls.__name__, field)
                compared += 1
    assert compared > 100


def test_what_a_key_fills_has_the_keys_default() -> None:
    filled = [key for key in KEYS.values() if key.fills is not None]
    assert len(filled) > 70
    for key in filled:
        assert key.fills is not None
        cls, field = key.fills
        default = defaults_of(cls)[field]
        if f"{cls.__name__}.{field}" in OTHERWISE:
            assert default != key.default, f"{field} needs no exception"
        elif isinstance(default, int) and not isinstance(default, bool):
            assert isinstance(key.default, int) and default == key.times * key.default, field
        else:
            assert getattr(default, "value", default) == key.default, field


def test_a_key_stands_in_one_table() -> None:
    rows = [key for _, keys in GROUPS for key in keys]
    assert sorted(key.name for key in rows) == sorted(KEYS)
    for name, key in KEYS.items():
        if name in SHARED_KEYS:
            assert replace(key, fills=None) == SHARED_KEYS[name]
        else:
            assert key.mode is UpdateMode.READ_ONLY, f"{name} can be altered, so it belongs in broker_keys.py"
        assert key.text and key.roles, name
    assert {name for name, key in SHARED_KEYS.items() if key.roles} <= set(KEYS)


@pytest.mark.parametrize("name", NUMBERS)
def test_a_file_and_a_request_refuse_a_value_alike(tmp_path: Path, name: str) -> None:
    least = SHARED_KEYS[name].minimum
    for text in ("x", "1e400", "" if least is None else value_text(least - 1)):
        with pytest.raises(ConfigValueError) as of_a_request:
            check_broker_value(name, text, per_broker=True)
        with pytest.raises(ConfigError) as of_a_file:
            loaded(tmp_path, **{name: text})
        assert str(of_a_file.value) == f"{tmp_path}/node.properties: {of_a_request.value}"
        assert f"{name} cannot be {text!r}: write a " in str(of_a_request.value)


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("node.id", "1_0", "write a whole number from 0 to 2147483647"),
        ("broker.heartbeat.interval.ms", "0", "write a whole number from 1 to 2147483647 ms"),
        ("connections.max.idle.ms", "-2", "write a whole number from 1 to 2147483647 ms, or -1"),
        ("log.cleaner.min.cleanable.ratio", "1.5", "write a number of at least 0 and at most 1"),
        ("log.cleaner.enable", "yes", "write true or false"),
        ("log.level", "loud", "choose from debug, info, warning, error"),
        ("log.cleanup.policy", "compact,keep", "choose from compact, delete"),
    ],
)
def test_what_a_key_allows_is_said(tmp_path: Path, name: str, text: str, why: str) -> None:
    with pytest.raises(ConfigError) as refused:
        loaded(tmp_path, **{name: text})
    assert str(refused.value).endswith(f": {name} cannot be {text!r}: {why}")


def test_a_secret_is_in_no_refusal() -> None:
    key = replace(SHARED_KEYS["ssl.key.password"], choices=("a",), kind=Kind.PASSWORD)
    assert key.sensitive
    assert "hidden" not in str(key._refusal("hidden", "write another"))


def test_a_row_without_its_field_says_which_class_needs_it() -> None:
    with pytest.raises(
        TypeError, match=r"no\.such\.key: .*\.node_configs\.ControllerConfig needs a field no_such_key"
    ):
        rows_of(ControllerConfig)("no.such.key", "what it does")
