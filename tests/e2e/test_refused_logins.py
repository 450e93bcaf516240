"""Commands that the brokers refuse end at once, with the reason: a wrong password, a missing right. And what
a command does not need may be missing."""

from __future__ import annotations

import itertools
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.cluster import FAST_BROKERS, HOST, Cluster
from tests.e2e.processes import run_cli
from tests.e2e.test_kafka_security import JAAS, ON_T, PASSWORD, SecureCluster

pytestmark = pytest.mark.e2e
NEVER = ("--timeout", "120")
"""Longer than a test may take: a command that ends has not waited for it."""


@pytest.fixture(name="site", scope="module")
def fixture_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureCluster]:
    folder = tmp_path_factory.mktemp("refused")
    with Cluster(folder, controllers=1, brokers=1, properties=FAST_BROKERS) as cluster:
        (folder / "tls").mkdir()
        site = SecureCluster(cluster, folder / "tls")
        cluster.start()
        cluster.create_topic("t", partitions=2, replicas=1)
        cluster.create_topic("hidden", partitions=1, replicas=1)
        site.command("acls", "add", "User:alice", *ON_T, "--operation", "read", "--operation", "write")
        yield site
        cluster.assert_no_bugs()


_numbers = itertools.count()


class Relay:
    """Passes connections to the broker on, and counts them."""

    def __init__(self, to_port: int) -> None:
        self._listening = socket.create_server((HOST, 0))
        self._to = HOST, to_port
        self.port = self._listening.getsockname()[1]
        self.connections = 0

    def run(self) -> None:
        while True:
            try:
                here, _ = self._listening.accept()
            except OSError:  # closed at the end of the test
                return
            self.connections += 1
            there = socket.create_connection(self._to)
            for ends in ((here, there), (there, here)):
                threading.Thread(target=self._copy, args=ends, daemon=True).start()

    @staticmethod
    def _copy(source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            target.close()

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()


@contextmanager
def relayed(port: int) -> Iterator[Relay]:
    relay = Relay(port)
    running = threading.Thread(target=relay.run, daemon=True)
    running.start()
    try:
        yield relay
    finally:
        relay.close()
        running.join(10)


def login(site: SecureCluster, password: str, port: int | None = None) -> tuple[str | Path, ...]:
    """Options of a command for alice."""
    path = site.folder / f"alice-{next(_numbers)}.properties"
    path.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
        f'sasl.jaas.config={JAAS} username="alice" password="{password}";\n'
    )
    return ("--bootstrap", f"{HOST}:{port or site.sasl_port}", "--command-config", path)


COMMANDS = [
    ("topics", "list"),
    ("groups", "list"),
    ("produce", "t", "--count", "1"),
    ("consume", "t", "--until-end"),
    ("consume", "t", "--until-end", "--group", "g"),
]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_wrong_password_ends_a_command_after_one_login(site: SecureCluster, words: tuple[str, ...]) -> None:
    with relayed(site.sasl_port) as relay:
        done = run_cli(*words, *login(site, "wrong", relay.port), *NEVER, expect=1)
    assert done.stderr.count("\n") == 1 and "it refuses the login" in done.stderr, done.stderr
    assert relay.connections == 1


@pytest.mark.parametrize("words", COMMANDS[2:4], ids=" ".join)
def test_a_wrong_password_in_a_property_ends_a_command(site: SecureCluster, words: tuple[str, ...]) -> None:
    given = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "alice"}
    options = [f"--property={key}={value}" for key, value in {**given, "sasl.password": "wrong"}.items()]
    done = run_cli(*words, "--bootstrap", f"{HOST}:{site.sasl_port}", *options, *NEVER, expect=1)
    assert done.stderr.count("\n") == 1 and "the login is refused" in done.stderr, done.stderr
    assert "://" not in done.stderr and "in state" not in done.stderr


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("produce", "hidden", "--count", "1"), "TOPIC_AUTHORIZATION_FAILED"),
        (("consume", "hidden", "--until-end"), "TOPIC_AUTHORIZATION_FAILED"),
        (("consume", "t", "--until-end", "--group", "g"), "GROUP_AUTHORIZATION_FAILED"),
        (("acls", "list"), "CLUSTER_AUTHORIZATION_FAILED"),
        (("topics", "delete", "t"), "TOPIC_AUTHORIZATION_FAILED"),
    ],
    ids=str,
)
def test_a_missing_right_ends_a_command(site: SecureCluster, words: tuple[str, ...], code: str) -> None:
    done = run_cli(*words, *login(site, PASSWORD), *NEVER, expect=1)
    assert done.stderr.count("\n") == 1 and code in done.stderr, done.stderr


@pytest.mark.parametrize(
    "how",
    [("--until-end",), ("--max-messages", "3"), ("--from", "0", "--partition", "0", "--until-end")],
    ids=str,
)
def test_consume_needs_no_right_on_a_group(site: SecureCluster, how: tuple[str, ...]) -> None:
    given = login(site, PASSWORD)
    run_cli("produce", "t", "--partition", "0", "--acks", "1", "--count", "3", "--size", "1", *given)
    done = run_cli("consume", "t", *how, *given, *NEVER)
    assert done.stdout.count("\n") >= 3 and done.stderr == ""
