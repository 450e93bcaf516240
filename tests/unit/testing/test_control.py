"""The control port of a cluster: its methods over HTTP, as other languages and the shell call them."""

from __future__ import annotations

import http.client
import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from confluent_kafka import KafkaError, Producer

from metaquorum.cli.main import main
from metaquorum.testing import Cluster
from metaquorum.testing.control import (
    FORM,
    ONLY_IN_PYTHON,
    Control,
    ControlFile,
    ControlServer,
    methods,
    parsed,
    reference,
)

REPOSITORY = Path(__file__).resolve().parents[3]


class Port:
    """A client of the control port."""

    def __init__(self, cluster: Cluster, server: ControlServer) -> None:
        self.cluster = cluster
        self.server = server

    def ask(
        self, name: str, body: Any = None, kind: str = "application/json", token: str | None = None
    ) -> tuple[int, Any]:
        connection = http.client.HTTPConnection(self.server.url.removeprefix("http://"), timeout=60)
        text = body if isinstance(body, str) else json.dumps(body or {})
        headers = {"Authorization": f"Bearer {token or self.server.token}", "Content-Type": kind}
        connection.request("POST", f"/{name}", text, headers)
        answer = connection.getresponse()
        found = json.loads(answer.read())
        connection.close()
        return answer.status, found

    def call(self, method: str, /, **given: Any) -> Any:
        status, answer = self.ask(method, given)
        assert status == 200, answer
        return answer


@pytest.fixture(name="port", scope="module")
def fixture_port() -> Iterator[Port]:
    with Cluster() as cluster:
        server = ControlServer(Control(cluster))
        yield Port(cluster, server)
        server.close()


def sent(port: Port, topic: str) -> KafkaError | None:
    errors: list[Any] = []
    producer = Producer(
        {"bootstrap.servers": port.call("bootstrap_servers"), "retries": 0, "client.id": "js"}
    )
    producer.produce(topic, b"a\xff", on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(60) == 0
    found: KafkaError | None = errors[0]
    return found


def test_a_fault_has_a_number_counts_and_heals(port: Port) -> None:
    topic = port.call("create_topic", name="orders", configs={"retention.ms": 1000})
    fault = port.call("fault", api="Produce", topic=topic, error="INVALID_RECORD", times=1)
    assert [*fault] == ["fault"]
    error = sent(port, topic)
    assert error is not None and error.name() == "INVALID_RECORD"
    port.call("wait", **fault)
    assert port.call("hits", **fault) == 1
    assert port.call("heal", **fault) is None
    status, answer = port.ask("hits", fault)
    assert status == 400 and answer == {"error": "there is no such fault with hits: in force are none"}
    assert sent(port, topic) is None
    (message,) = port.call("messages", topic=topic)
    assert (message["value"], message["offset"]) == ("Yf8=", 0)
    assert any("INVALID_RECORD" in line for line in port.call("timeline"))


def test_nodes_waits_and_the_clock_answer(port: Port) -> None:
    assert (port.call("nodes"), port.call("active_controller")) == ([0], 0)
    before = port.call("time_ms")
    port.call("advance", minutes=1)
    assert port.call("time_ms") >= before + 60_000
    fault = port.call("kill", node=0)
    assert not port.cluster._nodes[0].is_up
    port.call("heal", **fault)
    assert port.call("lag", group="nobody") == []


@pytest.mark.parametrize(
    ("name", "given", "status", "error"),
    [
        ("kil", {}, 404, "there is no method 'kil', did you mean kill?"),
        ("intercept", {"api": "Fetch"}, 404, "there is no method 'intercept'"),
        ("_end", {}, 404, "there is no method '_end'"),
        ("kill", {}, 400, "kill needs node: it takes node, power_lost"),
        ("kill", {"nod": 1}, 400, "kill has no nod: it takes node, power_lost"),
        ("kill", {"node": "0"}, 400, "kill: node is a number: Expected `int`, got `str`"),
        ("kill", {"node": 7}, 400, "the cluster has no node 7: it has 0"),
        ("heal", {"fault": 99}, 400, "there is no such fault"),
        ("fault", {"api": "Produce", "predicate": 1}, 400, "fault has no predicate"),
        ("kill", "[1]", 400, "the body must be a JSON object"),
        ("kill", "{", 400, "the body is not JSON"),
        ("kill", "[" * 100_000, 400, "the body is not JSON"),
    ],
)
def test_a_mistake_is_one_line(port: Port, name: str, given: Any, status: int, error: str) -> None:
    found, answer = port.ask(name, given)
    assert found == status and error in answer["error"] and "\n" not in answer["error"]


def test_a_wait_in_vain_and_a_stranger_are_told_apart(port: Port) -> None:
    port.cluster.timeout_s = 0.05
    try:
        status, answer = port.ask("wait_for_group", {"group": "none", "members": 3})
    finally:
        port.cluster.timeout_s = 30
    assert status == 504 and "for group none to be Stable with 3 members" in answer["error"]
    status, answer = port.ask("nodes", token="wrong")
    assert status == 401 and "Authorization: Bearer" in answer["error"]


def test_a_form_has_values_as_text(port: Port) -> None:
    status, answer = port.ask("create_topic", 'name=formed&partitions=2&configs={"retention.ms":5}', FORM)
    assert (status, answer) == (200, "formed")
    assert len(port.cluster._partitions_of("formed") or ()) == 2
    assert port.ask("create_topic", "name=x&configs={", FORM)[0] == 400
    assert (parsed(int | str, "1"), parsed(int | str, "User:a"), parsed(bool, "true")) == (1, "User:a", True)
    assert (parsed(int | None, "3"), parsed(float, "0.5"), parsed(str, "7")) == (3, 0.5, "7")


def test_the_command_calls_the_port(port: Port, tmp_path: Path) -> None:
    content = ControlFile.of(port.server, port.cluster)
    (tmp_path / "control.json").write_bytes(msgspec.json.encode(content))

    def run(*words: str, code: int = 0) -> str:
        result = CliRunner().invoke(main, ["fault", *words, "-d", str(tmp_path)])
        assert result.exit_code == code, result.output
        return result.output

    assert json.loads(run("create_topic", "name=shell")) == "shell"
    number = json.loads(run("cut", "a=User:alice", "b=0"))["fault"]
    copy = json.loads(run("copy_disk", "node=0"))["copy"]
    restored = json.loads(run("restore_disk_from", f"earlier={copy}"))["fault"]
    assert json.loads(run("heal", f"fault={restored}")) is None
    assert f"there is no copy 99: copies are {copy}" in run("restore_disk_from", "earlier=99", code=1)
    assert json.loads(run("heal", f"fault={number}")) is None
    assert run() == reference()
    assert run("kill", "node=x", code=1) == "metaquorum: kill: node is a number: Expected `int`, got `str`\n"
    assert "write each parameter once, as NAME=VALUE" in run("kill", "0", code=2)
    (tmp_path / "control.json").write_text("{")
    assert "is damaged" in run("nodes", code=1)
    (tmp_path / "control.json").unlink()
    assert "start one with: metaquorum local up --in-memory --directory" in run("nodes", code=1)
    (tmp_path / "cluster.json").write_text("{}")
    assert "has no control port; start one that has" in run("nodes", code=1)
    gone = msgspec.structs.replace(content, url="http://127.0.0.1:1")
    (tmp_path / "control.json").write_bytes(msgspec.json.encode(gone))
    assert "does not answer" in run("nodes", code=1)


def test_the_table_is_that_of_python_and_the_page_has_it() -> None:
    public = {
        name
        for name in dir(Cluster)
        if not name.startswith("_") and inspect.isfunction(getattr(Cluster, name))
    }
    assert public - {*methods()} == ONLY_IN_PYTHON and not ONLY_IN_PYTHON & {*methods()}
    page = (REPOSITORY / "docs" / "control.md").read_text("utf-8")
    assert reference() in page, (
        "print it: .venv/bin/python -c 'from metaquorum.testing.control import reference; print(reference())'"
    )
