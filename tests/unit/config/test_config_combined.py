"""Files of combined nodes: what each role is configured with, and the line for each wrong one."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from metaquorum.config.load import check_closed, load_config
from metaquorum.config.node import COMBINED, NodeConfig
from metaquorum.errors import ConfigError
from metaquorum.metadata.settings.keys import BROKER, CONTROLLER

FILE = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "listeners": "PLAINTEXT://a:9092,CONTROLLER://a:9093,GRPC://a:9094",
    "controller.quorum.voters": "1@a:9093,2@b:9093",
    "log.dirs": "/data/a,/data/b",
    "broker.session.timeout.ms": "4000",
    "broker.heartbeat.interval.ms": "500",
    "log.flush.before.ack": "false",
}


def loaded(tmp_path: Path, role: str | None = None, **changes: str | None) -> NodeConfig:
    merged: dict[str, str | None] = {**FILE, **{k.replace("__", "."): v for k, v in changes.items()}}
    path = tmp_path / "node.properties"
    path.write_text("".join(f"{name}={value}\n" for name, value in merged.items() if value is not None))
    return load_config(path, role)


@pytest.mark.parametrize("roles", ["broker,controller", "controller, broker"])
def test_each_role_has_its_own_part_of_one_file(tmp_path: Path, roles: str) -> None:
    config = loaded(tmp_path, process__roles=roles)
    controller, broker = config.of(CONTROLLER), config.of(BROKER)
    assert config.role == COMBINED and config.passed_over == ()
    assert [each.name for each in controller.listeners] == ["CONTROLLER"]
    assert [each.name for each in broker.listeners] == ["PLAINTEXT", "GRPC"]
    assert [each.name for each in config.grpc_listeners] == ["GRPC"]
    assert [each.name for each in config.kafka_listeners] == ["PLAINTEXT", "CONTROLLER"]
    assert broker.inter_broker_listener == broker.kafka_listeners[0]
    assert controller.controller("c", ()).broker_session_timeout_ms == 4000
    assert [each.name for each in controller.controller("c", ()).endpoints] == ["CONTROLLER"]
    assert broker.broker("c", (), ()).broker_heartbeat_interval_ms == 500
    assert [each.name for each in broker.broker("c", (), ()).endpoints] == ["PLAINTEXT", "GRPC"]
    assert broker.replicas().log_flush_before_ack is False
    assert [each.name for each in config.voter_endpoints] == ["CONTROLLER"]


@pytest.mark.parametrize(
    ("advertised", "controller", "broker"),
    [
        ("PLAINTEXT://out:1", "a:9093", "out:1"),
        ("CONTROLLER://deep:3", "deep:3", None),
        ("PLAINTEXT://out:1,CONTROLLER://deep:3", "deep:3", "out:1"),
    ],
)
def test_the_controllers_address_may_be_left_out_of_what_is_advertised(
    tmp_path: Path, advertised: str, controller: str, broker: str | None
) -> None:
    if broker is None:
        with pytest.raises(ConfigError, match="matches no listener"):
            loaded(tmp_path, advertised__listeners=advertised, inter__broker__listener__name="PLAINTEXT")
        return
    config = loaded(tmp_path, advertised__listeners=advertised)
    endpoint = config.voter_endpoints[0]
    assert f"{endpoint.host}:{endpoint.port}" == controller
    assert [f"{each.host}:{each.port}" for each in config.of(BROKER).advertised] == [broker]


def test_a_controller_on_every_interface(tmp_path: Path) -> None:
    """Static voters say where it is; where the log does, it must be said."""
    everywhere = "PLAINTEXT://a:9092,CONTROLLER://0.0.0.0:9093"
    assert loaded(tmp_path, listeners=everywhere).voter_endpoints == ()
    dynamic = {"controller__quorum__voters": None, "controller__quorum__bootstrap__servers": "a:9093"}
    with pytest.raises(ConfigError, match=r"CONTROLLER://0\.0\.0\.0:9093 cannot be advertised"):
        loaded(tmp_path, listeners=everywhere, **dynamic)
    told = "PLAINTEXT://a:9092,CONTROLLER://a:9093"
    config = loaded(tmp_path, listeners=everywhere, advertised__listeners=told, **dynamic)
    assert config.voter_endpoints[0].host == "a"


def test_every_listener_of_both_roles_is_closed_unless_opened(tmp_path: Path) -> None:
    forbids = {"allow__insecure__listeners": "false"}
    config = loaded(tmp_path, listeners="PLAINTEXT://127.0.0.1:9092,CONTROLLER://10.0.0.1:9093", **forbids)
    with pytest.raises(ConfigError, match="listener CONTROLLER on"):
        check_closed(config, lambda host: [host])
    config = loaded(tmp_path, listeners="PLAINTEXT://10.0.0.1:9092,CONTROLLER://127.0.0.1:9093", **forbids)
    with pytest.raises(ConfigError, match="listener PLAINTEXT on"):
        check_closed(config, lambda host: [host])
    check_closed(replace(config, values={**config.values, "allow.insecure.listeners": True}), list)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"process__roles": "broker,broker"}, "names a role twice"),
        ({"process__roles": "broker,worker"}, "choose controller, broker or both"),
        ({"node__id": "7"}, "node.id=7 is not among controller.quorum.voters (1, 2)"),
        ({"node__id": None}, "node.id is missing"),
        ({"node__id": None, "broker__id__generation__enable": "true"}, "is for a broker alone"),
        ({"broker__id__generation__enable": "true"}, "is for a broker alone"),
        ({"listeners": "PLAINTEXT://a:9092"}, "needs one listener named CONTROLLER"),
        ({"listeners": "CONTROLLER://a:9093"}, "listeners has CONTROLLER only"),
        ({"listeners": "CONTROLLER://a:9093,GRPC://a:1"}, "every listener speaks gRPC"),
        ({"inter__broker__listener__name": "CONTROLLER"}, "matches no listener that speaks Kafka's protocol"),
        ({"listeners": "CONTROLLER://a:9093,PLAINTEXT://0.0.0.0:9092"}, "PLAINTEXT://0.0.0.0:9092 cannot be"),
        ({"listener__security__protocol__map": "GRPC:SASL_SSL"}, "only Kafka listeners have SASL"),
        ({"controller__quorum__fetch__max__wait__ms": "900"}, "must be at most half of"),
        ({"replica__lag__time__max__ms": "1"}, "must be below replica.lag.time.max.ms"),
        ({"broker__sesion__timeout__ms": "1"}, "did you mean broker.session.timeout.ms?"),
    ],
    ids=str,
)
def test_a_wrong_file_is_one_line(tmp_path: Path, changes: dict[str, str | None], text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        loaded(tmp_path, **changes)
    assert text in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("role", [BROKER, CONTROLLER])
def test_the_command_of_one_role_does_not_take_it(tmp_path: Path, role: str) -> None:
    with pytest.raises(ConfigError, match=f"but a {role} was started: use metaquorum node run"):
        loaded(tmp_path, role)
