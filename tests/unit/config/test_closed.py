"""A node listens for unknown clients on loopback alone, unless its file says otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest

from metaquorum.config.load import check_closed, load_config, open_to_certificates
from metaquorum.config.security import STANDARD_AUTHORIZER
from metaquorum.errors import ConfigError
from metaquorum.node.driver import Ending
from metaquorum.node.process import run_process
from tests.unit.config.test_config import BROKER, CONTROLLER, written

NAMES = {
    "here": ["127.0.0.1", "::1"],
    "there": ["10.0.0.1"],
    "both": ["127.0.0.1", "10.0.0.1"],
    "nowhere": [],
}
TLS = {"ssl.keystore.location": "/k.pem", "ssl.truststore.location": "/t.pem"}
MUTUAL = {
    **TLS,
    "listener.security.protocol.map": "CONTROLLER:SSL",
    "ssl.client.auth": "required",
}
GRPC = "PLAINTEXT://127.0.0.1:9092"
SASL = {"sasl.enabled.mechanisms": "SCRAM-SHA-512", "listener.security.protocol.map": "KAFKA:SASL_PLAINTEXT"}
ALLOW = "allow.insecure.listeners"
SCRAM_LINE = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="c" password="p";'


def check(tmp_path: Path, base: dict[str, str], more: dict[str, str]) -> str | None:
    config = load_config(written(tmp_path, {**base, **more}))
    return check_closed(config, lambda host: NAMES.get(host, [host]))


@pytest.mark.parametrize(
    ("base", "more"),
    [
        (CONTROLLER, {}),
        (CONTROLLER, {"listeners": "CONTROLLER://here:9093"}),
        (CONTROLLER, {"listeners": "CONTROLLER://[::1]:9093"}),
        (CONTROLLER, {"listeners": "CONTROLLER://nowhere:9093"}),
        (CONTROLLER, {"listeners": "CONTROLLER://:9093", "allow.insecure.listeners": "true"}),
        (
            CONTROLLER,
            {
                **TLS,
                "listeners": "CONTROLLER://:9093",
                "listener.security.protocol.map": "CONTROLLER:SSL",
                "ssl.client.auth": "required",
            },
        ),
        (CONTROLLER, {**MUTUAL, "metrics.listener": "https://there:9404"}),
        (CONTROLLER, {"metrics.listener": "http://here:9404"}),
        (
            BROKER,
            {"listeners": f"{GRPC},KAFKA://127.0.0.2:1", "listener.security.protocol.map": "KAFKA:PLAINTEXT"},
        ),
        (BROKER, {**SASL, "listeners": f"{GRPC},KAFKA://:1"}),
        (
            BROKER,
            {
                **TLS,
                "listeners": f"{GRPC},KAFKA://there:1",
                "listener.security.protocol.map": "KAFKA:SSL",
                "listener.name.kafka.ssl.client.auth": "required",
            },
        ),
    ],
)
def test_closed(tmp_path: Path, base: dict[str, str], more: dict[str, str]) -> None:
    assert check(tmp_path, base, more) is None
    if ALLOW not in more:
        assert check(tmp_path, base, {**more, ALLOW: "false"}) is None


@pytest.mark.parametrize(
    ("base", "more", "text"),
    [
        (CONTROLLER, {"listeners": "CONTROLLER://:9093"}, "CONTROLLER on every interface:9093"),
        (CONTROLLER, {"listeners": "CONTROLLER://there:9093"}, "CONTROLLER on there:9093"),
        (CONTROLLER, {"metrics.listener": "http://there:9404"}, "listener http on there:9404 takes"),
        (
            CONTROLLER,
            {**MUTUAL, "metrics.listener": "http://there:9404"},
            "use https in metrics.listener with",
        ),
        (CONTROLLER, {**TLS, "metrics.listener": "https://there:9404"}, "listener https on there:9404 takes"),
        (CONTROLLER, {"listeners": "CONTROLLER://both:9093"}, "CONTROLLER on both:9093"),
        (
            CONTROLLER,
            {**TLS, "listeners": "CONTROLLER://:9093", "listener.security.protocol.map": "CONTROLLER:SSL"},
            "use SASL or ssl.client.auth=required (docs/security.md), or",
        ),
        (
            CONTROLLER,
            {
                **TLS,
                "listeners": "CONTROLLER://127.0.0.1:9093,GRPC://:9094",
                "controller.listener.names": "CONTROLLER,GRPC",
                "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,GRPC:SSL",
            },
            "without authentication: use ssl.client.auth=required (docs/security.md), or",
        ),
        (
            BROKER,
            {"listeners": f"{GRPC},KAFKA://10.0.0.1:1", "listener.security.protocol.map": "KAFKA:PLAINTEXT"},
            "KAFKA on 10.0.0.1:1",
        ),
        (BROKER, {**SASL, "listeners": "PLAINTEXT://there:9092,KAFKA://:1"}, "PLAINTEXT on there:9092"),
        (
            BROKER,
            {
                **TLS,
                "listeners": f"{GRPC},KAFKA://there:1",
                "listener.security.protocol.map": "KAFKA:SSL",
                "ssl.client.auth": "requested",
            },
            "use SASL or ssl.client.auth=required",
        ),
    ],
)
def test_open(tmp_path: Path, base: dict[str, str], more: dict[str, str], text: str) -> None:
    """A Kafka listener starts with a warning, as with Kafka, unless the file forbids it."""
    with pytest.raises(ConfigError) as caught:
        check(tmp_path, base, {**more, ALLOW: "false"})
    refusal = str(caught.value)
    assert text in refusal and refusal.endswith(f"or accept that with {ALLOW}=true")
    if "metrics.listener" in more or "GRPC://" in more["listeners"]:
        with pytest.raises(ConfigError, match=r"takes clients of other machines"):
            check(tmp_path, base, more)
    else:
        assert check(tmp_path, base, more) == refusal
    assert check(tmp_path, base, {**more, ALLOW: "true"}) is None


def test_the_listeners_that_are_open_are_one_line(tmp_path: Path) -> None:
    both = {"listeners": "PLAINTEXT://:9092,CONTROLLER://there:9093", "process.roles": "broker,controller"}
    line = check(tmp_path, CONTROLLER, both)
    assert line is not None
    assert "PLAINTEXT on every interface:9092, CONTROLLER on there:9093 takes clients" in line
    with pytest.raises(ConfigError, match=r"listener http on there:9404 takes"):
        check(tmp_path, CONTROLLER, {**both, "metrics.listener": "http://there:9404"})


@pytest.mark.parametrize(
    ("more", "begins"),
    [
        ({"listeners": "CONTROLLER://:9093", "controller.listener.names": "CONTROLLER"}, True),
        (
            {
                "listeners": "CONTROLLER://:9093,GRPC://:9094",
                "controller.listener.names": "CONTROLLER,GRPC",
            },
            False,
        ),
    ],
    ids=["a file of Kafka", "with gRPC"],
)
def test_a_node_of_kafkas_own_file_begins_with_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: dict[str, str], begins: bool
) -> None:
    begun = []

    async def serve(config: object) -> Ending:
        begun.append(config)
        return Ending(failed=False, reason="it ends")

    path = written(tmp_path, {**CONTROLLER, **more})
    assert run_process(str(path), "controller", serve) == (0 if begins else 1)
    lines = [line for line in capsys.readouterr().err.splitlines() if "without authentication" in line]
    assert len(lines) == 1 and ("WARNING" in lines[0]) is begins is bool(begun)


@pytest.mark.parametrize(
    ("more", "warned"),
    [
        ({**MUTUAL, "listeners": "CONTROLLER://there:9093"}, True),
        (
            {
                **MUTUAL,
                "listeners": "CONTROLLER://here:9093,GRPC://:9094",
                "controller.listener.names": "CONTROLLER,GRPC",
                "listener.security.protocol.map": "CONTROLLER:SSL,GRPC:SSL",
            },
            True,
        ),
        (
            {
                **MUTUAL,
                "listeners": "CONTROLLER://:9093",
                "listener.security.protocol.map": "CONTROLLER:SASL_SSL",
                "sasl.enabled.mechanisms": "SCRAM-SHA-512",
                "sasl.mechanism.controller.protocol": "SCRAM-SHA-512",
                "listener.name.controller.scram-sha-512.sasl.jaas.config": SCRAM_LINE,
            },
            False,
        ),
        ({**MUTUAL, "listeners": "CONTROLLER://here:9093"}, False),
        ({"listeners": "CONTROLLER://there:9093"}, False),
        (
            {
                **MUTUAL,
                "listeners": "CONTROLLER://there:9093",
                "authorizer.class.name": STANDARD_AUTHORIZER,
                "super.users": "User:node",
            },
            False,
        ),
    ],
)
def test_a_node_warns_if_every_certificate_is_an_administrator(
    tmp_path: Path, more: dict[str, str], warned: bool
) -> None:
    config = load_config(written(tmp_path, {**CONTROLLER, **more}))
    line = open_to_certificates(config, lambda host: NAMES.get(host, [host]))
    assert (line is not None) is warned
    if line is not None:
        assert "every client with a certificate" in line
        assert "in every node's file" in line
