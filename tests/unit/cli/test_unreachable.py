"""A quorum that cannot be reached: one line, a non-zero exit, and no longer than the user said."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from metaquorum.cli.main import main
from tests.unit.server.nodes import silent_port

COMMANDS = [
    ["quorum", "describe"],
    ["quorum", "describe", "--replication", "--json"],
    ["quorum", "transfer", "--to", "3001"],
    ["brokers", "list"],
    ["brokers", "describe", "1"],
    ["brokers", "unregister", "1"],
    ["brokers", "bindings", "--json"],
    ["brokers", "bind", "host-a", "1"],
    ["brokers", "unbind", "host-a"],
    ["configs", "describe", "topic", "orders"],
    ["configs", "alter", "topic", "orders", "--set", "flush.ms=1"],
    ["features", "describe"],
    ["features", "upgrade", "metadata.version=3.7"],
    ["acls", "list"],
    ["users", "scram", "list"],
    ["quotas", "describe"],
    ["tokens", "list"],
    ["producer-ids", "allocate", "1"],
    ["topics", "list"],
    ["topics", "create", "orders"],
    ["topics", "describe"],
    ["topics", "delete", "orders"],
    ["produce", "orders"],
    ["produce", "orders", "--count", "10", "--json"],
    ["consume", "orders"],
    ["consume", "orders", "--until-end", "--json"],
    ["log-dirs", "describe"],
    ["log-dirs", "mark-offline", "--broker", "1", "/data", "--yes"],
]


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    """A working directory without a local cluster."""
    monkeypatch.chdir(tmp_path)
    return CliRunner()


def assert_one_line(result: Result, *parts: str) -> None:
    assert result.exit_code == 1, result.output
    assert isinstance(result.exception, SystemExit)
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith("metaquorum: ")
    for part in parts:
        assert part in result.stderr


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_nobody_listens(elsewhere: CliRunner, command: list[str]) -> None:
    with silent_port() as port:
        address = f"127.0.0.1:{port}"
        result = elsewhere.invoke(main, [*command, "-b", address, "--timeout", "0.1"])
    assert_one_line(result, f"no node at {address} answered within 100 ms")


@pytest.mark.parametrize(
    "command",
    [["quorum", "describe"], ["quorum", "add-voter", "4"], ["features", "describe"], ["brokers", "list"]],
)
def test_controllers_that_say_nothing_had_the_whole_time(elsewhere: CliRunner, command: list[str]) -> None:
    """Half of it passes before it is clear that they speak neither protocol."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        result = elsewhere.invoke(
            main, [*command, "--bootstrap-controllers", f"127.0.0.1:{port}", "--timeout", "0.8"]
        )
    assert_one_line(result, f"no node at 127.0.0.1:{port} answered within 800 ms (last: ")


def test_each_silent_controller_is_a_line_of_the_answer(elsewhere: CliRunner) -> None:
    with silent_port() as one, silent_port() as other:
        addresses = [f"127.0.0.1:{port}" for port in (one, other)]
        result = elsewhere.invoke(main, ["controller", "status", "-b", ",".join(addresses)])
    assert result.exit_code == 1 and result.stderr == ""
    lines = result.stdout.split("\n\n")
    assert [line.split(": ")[0] for line in lines] == addresses
    assert all("not reachable" in line for line in lines)


@pytest.mark.parametrize("command", [*COMMANDS, ["controller", "status"]], ids=" ".join)
def test_no_cluster_is_named(elsewhere: CliRunner, command: list[str]) -> None:
    result = elsewhere.invoke(
        main, command, env={"METAQUORUM_BOOTSTRAP": None, "METAQUORUM_BOOTSTRAP_CONTROLLERS": None}
    )
    assert_one_line(
        result, "no cluster to connect to: var/local has none; give --bootstrap", "metaquorum local up"
    )


@pytest.mark.parametrize("command", [["quorum", "describe"], ["controller", "status"]], ids=" ".join)
@pytest.mark.parametrize("address", ["nonsense", "host:", "host:0", "host:99999", ":9093", ","])
def test_an_address_that_is_none(elsewhere: CliRunner, command: list[str], address: str) -> None:
    result = elsewhere.invoke(main, [*command, "-b", address])
    assert_one_line(result, "write host:port,host:port")


NOWHERE = "no-such-host.invalid:9092"


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("address", [NOWHERE, f"{NOWHERE},also-{NOWHERE}"])
def test_names_that_do_not_resolve_are_told_at_once(
    elsewhere: CliRunner, command: list[str], address: str
) -> None:
    """A command that waited for the end of --timeout would say for how long nobody answered."""
    result = elsewhere.invoke(main, [*command, "-b", address, "--timeout", "300"])
    assert_one_line(result, f"{NOWHERE}: ", "its host name cannot be resolved: correct it")


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_an_address_with_a_blank_is_told_at_once(elsewhere: CliRunner, command: list[str]) -> None:
    result = elsewhere.invoke(main, [*command, "-b", "127.0.0.1:1 127.0.0.1:2", "--timeout", "300"])
    assert_one_line(result, "'127.0.0.1:1 127.0.0.1:2' has a blank in it: write host:port,host:port")


@pytest.mark.parametrize("option", ["--truststore", "--keystore"])
@pytest.mark.parametrize(("content", "part"), [(None, "cannot be read"), ("no certificate", "pem")])
def test_tls_files_that_are_none(elsewhere: CliRunner, option: str, content: str | None, part: str) -> None:
    if content is not None:
        Path("file.pem").write_text(content)
    result = elsewhere.invoke(main, ["quorum", "describe", "-b", "127.0.0.1:1", option, "file.pem"])
    assert_one_line(result, part, "file.pem")


@pytest.mark.parametrize("text", ["a:b", "0:1,", "0:-1", "0:1;1:2"])
def test_an_assignment_that_is_none(elsewhere: CliRunner, text: str) -> None:
    result = elsewhere.invoke(main, ["topics", "create", "x", "--replica-assignment", text])
    assert result.exit_code == 2
    assert "is not an assignment; write broker ids as 0:1,1:2" in result.stderr
    assert result.stderr.count("\n") == 1


def test_an_assignment_already_says_the_counts(elsewhere: CliRunner) -> None:
    result = elsewhere.invoke(
        main, ["topics", "create", "x", "--replica-assignment", "0:1", "--partitions", "3"]
    )
    assert result.exit_code == 2
    assert "already sets the partitions" in result.stderr
