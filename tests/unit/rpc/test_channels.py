"""Where a server listens. No server runs here: what is asked of gRPC is looked at."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from metaquorum.errors import StartError
from metaquorum.rpc.channels import bind


class Recorder:
    """Stands where gRPC's server does."""

    def __init__(self) -> None:
        self.targets: list[str] = []

    def add_insecure_port(self, target: str) -> int:
        self.targets.append(target)
        return int(target.rpartition(":")[2])


@pytest.fixture
def taken() -> Iterator[socket.socket]:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held


def asked_for(host: str, port: int) -> list[str]:
    server: Any = Recorder()
    assert bind(server, host, port, None) == port
    return server.targets


def test_a_host_is_bound_alone_and_none_is_every_interface(taken: socket.socket) -> None:
    port = taken.getsockname()[1]
    taken.close()
    assert asked_for("127.0.0.1", port) == [f"127.0.0.1:{port}"]
    assert asked_for("", port) == [f"[::]:{port}"]


@pytest.mark.parametrize("host", ["127.0.0.1", ""])
def test_a_port_that_somebody_has_on_one_interface_is_refused(taken: socket.socket, host: str) -> None:
    taken.listen(1)
    port = taken.getsockname()[1]
    with pytest.raises(StartError, match=f":{port}: Address already in use; stop the process") as caught:
        asked_for(host, port)
    assert "\n" not in str(caught.value)
