"""What each key changes, and what forms of listeners and voters become, as recorded text.

Who changes a line here changes what a file means; `pytest --rewrite` with this file records it again.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import pytest

from metaquorum.config.keys import KEYS
from metaquorum.config.load import load_config
from metaquorum.config.node import NodeConfig
from metaquorum.errors import ConfigError
from metaquorum.metadata.settings.keys import MAX_DOUBLE, Key, Kind, value_text

RECORDED = Path(__file__).with_name("config_recorded.txt")
VOTERS = {"controller.quorum.voters": "1@h1:9093,2@h2:9093"}
SERVERS = {"controller.quorum.bootstrap.servers": "h1:9093,[::1]:9094"}
NODE = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "listeners": "PLAINTEXT://here:9092,CONTROLLER://here:9093",
    "log.dirs": "/data/a,/data/b",
    **VOTERS,
}
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
SPECIAL = {
    "process.roles": "controller",
    "node.id": "2",
    "listeners": "PLAINTEXT://here:7,CONTROLLER://here:9",
    "controller.quorum.voters": "1@h1:9093:AAAAAAAAAAAAAAAAAAAAAQ",
    "controller.quorum.bootstrap.servers": "h9:1,[::1]:2",
    "advertised.listeners": "PLAINTEXT://there:9092",
    "controller.listener.names": "controller,other",
    "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT",
    "inter.broker.listener.name": "plaintext",
    "security.inter.broker.protocol": "plaintext",
    "log.dirs": "/data/b",
    "metadata.log.dir": "/data/m",
    "metrics.listener": "http://:9404",
}
"""A value that is not the default, where the kind of a key does not offer one."""


USUAL = ("delete",)


def another(key: Key) -> str:
    """A value that the key may have, and has not by default."""
    if key.name in SPECIAL:
        return SPECIAL[key.name]
    if key.kind is Kind.BOOLEAN:
        return value_text(not key.default)
    if key.choices:
        return next(each for each in reversed(key.choices) if each not in (key.default, *USUAL))
    if isinstance(key.default, float):
        most = MAX_DOUBLE if key.maximum is None else key.maximum
        return str(key.default + 0.125 if key.default + 1 <= most else key.default / 2)
    if key.kind in (Kind.INT, Kind.LONG):
        least = key.minimum if key.default is None else key.default
        assert isinstance(least, int) and key.maximum is not None
        return str(least + 1 if least < key.maximum else least // 2)
    return "x1,x2" if key.kind is Kind.LIST else "x1"


def fields(place: str, value: Any) -> Iterator[tuple[str, str]]:
    """Every value that a configuration holds, by its place."""
    if isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            if not (isinstance(value, NodeConfig) and name in ("values", "path")):
                yield from fields(f"{place}.{name}", getattr(value, name))
    elif hasattr(value, "__slots__") and not isinstance(value, str | bytes | tuple | Path):
        for name in value.__slots__:
            yield from fields(f"{place}.{name}", getattr(value, name))
    elif isinstance(value, dict):
        for name, each in value.items():
            yield from fields(f"{place}.{name}", each)
    elif isinstance(value, tuple) and any(isinstance(each, msgspec.Struct) for each in value):
        for at, each in enumerate(value):
            yield from fields(f"{place}.{at}", each)
    else:
        yield place, str(value) if isinstance(value, Path) else repr(value)


def loaded(directory: Path, pairs: dict[str, str]) -> NodeConfig:
    path = directory / "node.properties"
    path.write_text("".join(f"{name}={value}\n" for name, value in pairs.items()))
    return load_config(path)


def whole(config: NodeConfig) -> dict[str, str]:
    """With what the cores are configured with."""
    found = dict(fields("node", config))
    if config.role != "broker":
        found |= dict(fields("controller", config.controller("c", ())))
        found |= dict(fields("voter", config.voter_endpoints))
    if config.role != "controller":
        broker = config.of("broker")
        found |= dict(fields("broker", broker.broker("c", (bytes(16),), ())))
        found |= dict(fields("replicas", broker.replicas()))
        found |= dict(fields("coordinators", broker.coordinators()))
        found |= dict(fields("followed", broker.inter_broker_listener))
    for role in ("controller", "broker"):
        own = config.of(role)
        found[f"{role}'s grpc"] = " ".join(each.name for each in own.grpc_listeners)
        found[f"{role}'s kafka"] = " ".join(each.name for each in own.kafka_listeners)
    return found


def problem(directory: Path, error: ConfigError) -> str:
    return f"refused: {str(error).removeprefix(f'{directory}/node.properties: ')}"


def changes(directory: Path, pairs: dict[str, str], before: dict[str, str]) -> list[str]:
    try:
        after = whole(loaded(directory, pairs))
    except ConfigError as error:
        return [problem(directory, error)]
    return [
        f"{place} {after.get(place, 'gone')}"
        for place in sorted({*before, *after})
        if before.get(place) != after.get(place)
    ]


LOGIN = {
    "process.roles": "broker",
    "node.id": "101",
    "listeners": "IN://here:1,OUT://here:2",
    "listener.security.protocol.map": "IN:SASL_PLAINTEXT,OUT:SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "OAUTHBEARER,SCRAM-SHA-256,PLAIN",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "listener.name.in.plain.sasl.jaas.config": f'{PLAIN} username="b" password="p" user_a="q" user_b="p";',
    "listener.name.out.plain.sasl.jaas.config": f'{PLAIN} user_bob="hidden";',
    "sasl.oauthbearer.jwks.endpoint.url": "file:///keys%20of%20us.json",
    "log.dirs": "/data/a",
    "inter.broker.listener.name": "IN",
    **VOTERS,
}
LOGINS: dict[str, str] = {
    "sasl.oauthbearer.jwks.endpoint.url": "file://localhost/others.json",
    "sasl.oauthbearer.expected.audience": "a,b",
    "sasl.oauthbearer.expected.issuer": "https://issuer",
    "sasl.oauthbearer.clock.skew.seconds": "7",
    "sasl.oauthbearer.sub.claim.name": "name",
    "sasl.enabled.mechanisms": "PLAIN",
    "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-256",
    "sasl.server.max.receive.size": "7777",
    "connections.max.reauth.ms": "99",
    "listener.name.out.sasl.enabled.mechanisms": "SCRAM-SHA-512",
    "listener.name.out.connections.max.reauth.ms": "98",
    "listener.name.out.plain.connections.max.reauth.ms": "97",
    "listener.name.out.sasl.oauthbearer.expected.issuer": "https://other",
    "listener.name.out.sasl.server.max.receive.size": "7776",
    "listener.name.in.plain.sasl.jaas.config": "nonsense",
    "listener.name.out.plain.sasl.jaas.config": f"{PLAIN};",
}


HOSTS = {"named": "here", "all": "", "nowhere": "0.0.0.0"}
ADVERTISED = {
    "nothing": (),
    "all": ("PLAINTEXT://there:1", "CONTROLLER://there:2"),
    "PLAINTEXT": ("PLAINTEXT://there:1",),
    "CONTROLLER": ("CONTROLLER://there:2",),
    "CONTROLLER alone nowhere": ("CONTROLLER://[::]:2",),
    "CONTROLLER nowhere": ("PLAINTEXT://there:1", "CONTROLLER://[::]:2"),
    "PLAINTEXT nowhere": ("PLAINTEXT://0.0.0.0:1", "CONTROLLER://there:2"),
}
ROLES = {
    "controller": ("1", "CONTROLLER://{}:9093"),
    "broker": ("101", "PLAINTEXT://{}:9092"),
    "broker,controller": ("1", "PLAINTEXT://{}:9092,CONTROLLER://{}:9093"),
}
SHOWN = ("node.advertised", "voter.", "followed.", "s grpc", "s kafka")


def of_listeners(directory: Path) -> Iterator[str]:
    """Roles, hosts, what is advertised, and how the quorum is named."""
    for role, host, advertised, quorum in product(ROLES, HOSTS, ADVERTISED, ("static", "dynamic")):
        node_id, listeners = ROLES[role]
        pairs = {
            "process.roles": role,
            "node.id": node_id,
            "listeners": listeners.replace("{}", HOSTS[host]),
            "advertised.listeners": ",".join(ADVERTISED[advertised]),
            "log.dirs": "/data/a",
            **(VOTERS if quorum == "static" else SERVERS),
        }
        try:
            found = whole(loaded(directory, pairs))
        except ConfigError as error:
            text = problem(directory, error)
        else:
            shown = [f"{at} {each}" for at, each in found.items() if any(one in at for one in SHOWN)]
            text = "; ".join(shown)
        yield f"{role} listens on {host}, advertises {advertised}, {quorum}"
        yield f"    {text}"


def test_keys_and_listeners_are_what_was_recorded(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    before = whole(loaded(tmp_path, NODE))
    lines = [f"{place} {value}" for place, value in before.items()]
    for key in KEYS.values():
        value = another(key)
        found = changes(tmp_path, {**NODE, key.name: value}, before)
        lines += [f"{key.name}={value}", *(f"    {each}" for each in found)]
    logins = whole(loaded(tmp_path, LOGIN))
    lines += [f"{place} {value}" for place, value in logins.items() if before.get(place) != value]
    for name, value in LOGINS.items():
        lines += [
            f"{name}={value}",
            *(f"    {each}" for each in changes(tmp_path, {**LOGIN, name: value}, logins)),
        ]
    lines += of_listeners(tmp_path)
    actual = "\n".join(lines) + "\n"
    if request.config.getoption("--rewrite"):
        RECORDED.write_text(actual, encoding="utf-8")
    assert actual == RECORDED.read_text(encoding="utf-8"), "review: pytest with --rewrite"
