"""examples/replicated_kv.py: three real processes, one of them killed with -9 again and again."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from metaquorum.node.local_nodes import free_ports
from tests.e2e.processes import REPOSITORY

pytestmark = pytest.mark.e2e
EXAMPLE = REPOSITORY / "examples" / "replicated_kv.py"
PATIENCE_S = 60


class Store:
    """The three processes, and a client that retries until it gets a response."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.ports = free_ports(3)
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self.leader = 0
        self.client = socket.socket(type=socket.SOCK_DGRAM)
        self.client.settimeout(0.5)

    def start(self, node_id: int) -> None:
        command = [sys.executable, EXAMPLE, node_id, self.root / f"node-{node_id}", *self.ports]
        with (self.root / f"node-{node_id}.err").open("ab") as errors:
            self.processes[node_id] = subprocess.Popen([str(part) for part in command], stderr=errors)

    def kill(self, node_id: int) -> None:
        process = self.processes.pop(node_id)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def ask(self, text: str, wanted: str) -> str:
        """The first response that begins with `wanted`, from whichever node leads."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            self.client.sendto(text.encode(), ("127.0.0.1", self.ports[self.leader]))
            try:
                answer = self.client.recv(1000).decode()
            except (TimeoutError, ConnectionError):
                self.leader = (self.leader + 1) % 3
                continue
            if answer.startswith(wanted):
                return answer
            word, _, port = answer.partition(" ")
            self.leader = self.ports.index(int(port)) if word == "ask" and port else (self.leader + 1) % 3
        raise AssertionError(f"nobody answered {text!r} with {wanted!r}: {self.errors()}")

    def put(self, key: str, value: str) -> None:
        self.ask(f"put {key} {value}", f"ok {key}")

    def get(self, key: str) -> str:
        return self.ask(f"get {key}", "value ").removeprefix("value ")

    def errors(self) -> str:
        return "".join((self.root / f"node-{node_id}.err").read_text() for node_id in range(3))


@contextmanager
def running(root: Path) -> Iterator[Store]:
    store = Store(root)
    try:
        for node_id in range(3):
            store.start(node_id)
        yield store
    finally:
        for node_id in list(store.processes):
            store.kill(node_id)
        store.client.close()


@pytest.mark.timeout(240)
def test_what_was_answered_survives_kill_9_of_any_node(tmp_path: Path) -> None:
    with running(tmp_path) as store:
        store.put("colour", "red")
        assert store.get("colour") == "red"
        for round_ in range(3):
            doomed = store.leader if round_ != 1 else (store.leader + 1) % 3
            store.kill(doomed)
            store.put(f"round-{round_}", str(doomed))
            store.put("colour", f"shade {round_}")
            store.start(doomed)
            assert store.get("colour") == f"shade {round_}"
        for node_id in range(3):
            store.kill(node_id)
        for node_id in range(3):
            store.start(node_id)
        assert store.get("colour") == "shade 2"
        assert all(store.get(f"round-{round_}") != "" for round_ in range(3))
        assert store.get("nobody put this") == ""
        assert "Traceback" not in store.errors()


def test_the_example_stays_short() -> None:
    assert len(EXAMPLE.read_text().splitlines()) < 100
