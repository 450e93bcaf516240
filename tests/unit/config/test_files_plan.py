"""The shares of a process's file descriptors, and what a start says about them."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from metaquorum.config.load import load_config
from metaquorum.errors import ConfigError
from metaquorum.metadata.settings.keys import BROKER, CONTROLLER
from metaquorum.network import files_plan
from metaquorum.network.files_plan import FilePlan, log_plan, plan_files, port_limits
from metaquorum.network.limits import ConnectionSlot
from metaquorum.storage.disk.descriptors import DESCRIPTORS
from tests.unit.server.nodes import new_site

LIMITS = (128, 256, 1_024, 4_096, 20_000, 1_048_576, 2**63 - 1)


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("roles", [(CONTROLLER,), (BROKER,), (BROKER, CONTROLLER)])
@pytest.mark.parametrize("ports", [0, 1, 3])
@pytest.mark.parametrize("has_quorum", [False, True])
def test_the_shares_are_no_more_than_the_whole(
    limit: int, roles: tuple[str, ...], ports: int, has_quorum: bool
) -> None:
    plan = FilePlan.of(limit, roles=roles, ports=ports, has_quorum=has_quorum)
    shares = plan.reserved + plan.metrics + plan.grpc * ports + plan.segments + plan.clients + plan.quorum
    assert shares <= plan.limit <= limit
    assert plan.reserved >= 80 and plan.metrics >= 1 and plan.grpc >= 1
    assert (plan.clients >= 1 and plan.segments >= 1) is (BROKER in roles)


def test_the_usual_limits_leave_what_a_node_needs() -> None:
    """macOS has 256, a shell and a service 1,024."""
    small = FilePlan.of(256, roles=(BROKER,), ports=1)
    assert small.clients >= 64 and small.segments >= 40 and small.grpc >= 16
    combined = FilePlan.of(256, roles=(BROKER, CONTROLLER), ports=2, has_quorum=True)
    assert combined.quorum >= 32 and combined.clients >= 48 and combined.segments >= 32
    usual = FilePlan.of(1_024, roles=(BROKER, CONTROLLER), ports=3)
    assert usual.clients >= 200 and usual.segments >= 250 and usual.grpc >= 32


def test_a_combined_node_keeps_connections_for_its_quorum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files_plan, "raise_open_files", lambda: 256)
    monkeypatch.setattr(files_plan, "HELD", 0)
    file = tmp_path / "node.properties"
    file.write_text(
        "process.roles=broker,controller\nnode.id=1\ncontroller.quorum.voters=1@127.0.0.1:9093\n"
        "controller.listener.names=CONTROLLER\nlisteners=CONTROLLER://127.0.0.1:9093,PLAINTEXT://127.0.0.1:9092\n"
        f"log.dirs={tmp_path}\n"
    )
    plan = plan_files(load_config(file))
    assert plan.quorum >= 32


def test_a_start_says_the_shares_and_what_the_limit_cannot_carry(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files_plan, "raise_open_files", lambda: 1_024)
    monkeypatch.setattr(files_plan, "HELD", 0)
    site = new_site(tmp_path)
    with caplog.at_level(logging.INFO):
        config = load_config(site.broker_file({}))
        log_plan(plan_files(config), config)
        (line,) = caplog.messages
        assert line.startswith("limit of open files 1024: ") and "for segments of partitions" in line
        caplog.clear()
        config = load_config(site.broker_file({"max.connections": "5000"}))
        plan = plan_files(config)
        log_plan(plan, config)
        assert caplog.messages[1] == (
            f"max.connections is 5000, but the limit of open files (1024) leaves {plan.clients}: raise it "
            "(ulimit -n, LimitNOFILE of a service)"
        )
    monkeypatch.setattr(files_plan, "raise_open_files", lambda: 64)
    caplog.clear()
    log_plan(plan_files(config), config)
    assert "the limit of open files is 64, which is not enough" in caplog.text


@pytest.mark.parametrize("value", ["host", "host:", ":3", "a:1,a:2", "a:-1", "a:x"])
def test_overrides_that_say_nothing_are_refused(tmp_path: Path, value: str) -> None:
    file = new_site(tmp_path).broker_file({"max.connections.per.ip.overrides": value})
    with pytest.raises(ConfigError, match=r"max\.connections\.per\.ip\.overrides"):
        load_config(file)


@pytest.mark.parametrize("role", ["controller", "broker"])
def test_the_ports_of_nodes_have_the_limits_of_the_file(tmp_path: Path, role: str) -> None:
    """max.connections is of a broker's clients, who have ports of their own."""
    site = new_site(tmp_path)
    file = site.controller_file if role == "controller" else site.broker_file
    keys = {
        "max.connections": "7",
        "max.connections.per.ip": "5",
        "max.connections.per.ip.overrides": "127.0.0.2:3",
    }

    def let_in(address: str) -> int:
        limits = port_limits(load_config(file(keys)), 9)
        count = 0
        for number in range(20):
            place = limits.admit("GRPC", address.format(number))
            if isinstance(place, ConnectionSlot):
                place.known()
                count += 1
        return count

    assert (let_in("127.0.0.1"), let_in("127.0.0.2")) == (5, 3)
    assert let_in("10.0.0.{}") == (7 if role == "controller" else 9)


def python(code: str, limit: str) -> str:
    done = subprocess.run(
        ["sh", "-c", f'{limit}; exec "$@"', "sh", sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_soft_limit_is_raised_to_the_hard_one() -> None:
    code = "from metaquorum.platforms import raise_open_files as up; print(up(), up())"
    assert python(code, "ulimit -Sn 300; ulimit -Hn 700") == "700 700\n"


def test_a_log_is_opened_where_nothing_is_left_to_open(tmp_path: Path) -> None:
    """The reserve is used, and refilled when others have closed theirs."""
    code = f"""
import os
from metaquorum.storage.disk.descriptors import DESCRIPTORS
from metaquorum.storage.disk.posix import PosixDisk
DESCRIPTORS.hold(4)
taken = []
try:
    while True:
        taken.append(os.open(os.devnull, os.O_RDONLY))
except OSError:
    pass
disk = PosixDisk()
files = [disk.open_append(f"{tmp_path}/{{at}}") for at in range(3)]
files[0].append(b"x"); files[0].sync(); disk.sync_directory("{tmp_path}"); disk.list_directory("{tmp_path}")
print(len(DESCRIPTORS) <= 1, DESCRIPTORS.used >= 4)
for each in taken: os.close(each)
DESCRIPTORS.refill()
print(len(DESCRIPTORS))
"""
    assert python(code, "ulimit -n 100").split("\n")[:2] == ["True True", "4"]
    assert len(DESCRIPTORS) == 0  # none in a process that runs no node
