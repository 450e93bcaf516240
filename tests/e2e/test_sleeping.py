"""A laptop sleeps for eight hours, and its cluster serves again without a restart."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.processes import REPOSITORY, run_cli, wait_until
from tests.systems.sleeping import environment

pytestmark = pytest.mark.e2e


@pytest.fixture(name="cluster")
def fixture_cluster(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """The directory of three combined nodes, and their addresses."""
    place = tmp_path / "c"
    begin = ("local", "up", "-d", str(place), "--combined", "3", "--free-ports")
    done = subprocess.run(
        [sys.executable, "-m", "metaquorum.cli", *begin],
        env=environment(),
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    try:
        yield place, done.stdout.split("bootstrap.servers=")[1].split()[0]
    finally:
        run_cli("local", "down", "-d", place)


def pids(place: Path) -> dict[str, int]:
    found = sorted(place.glob("*/process.json"))
    return {each.parent.name: json.loads(each.read_bytes())["pid"] for each in found}


def write(servers: str, words: list[str]) -> None:
    run_cli("produce", "orders", "-b", servers, "--no-progress", given="\n".join(words))


@pytest.mark.parametrize("sleepers", [3, 1, 2])
def test_nodes_wake_and_serve(cluster: tuple[Path, str], sleepers: int) -> None:
    """All of them sleep, or those of one laptop while the others go on."""
    place, servers = cluster
    run_cli(*("topics", "create", "orders", "--partitions", 6, "--replication-factor", 3, "-b", servers))
    before, after = ([f"{when} {number}" for number in range(200)] for when in ("before", "after"))
    write(servers, before)
    nodes = pids(place)
    for pid in list(nodes.values())[:sleepers]:
        os.kill(pid, signal.SIGUSR1)
    write(servers, after)
    read = run_cli(
        "consume", "orders", "-b", servers, "--from", "earliest", "--until-end", "--no-progress"
    ).stdout
    assert sorted(read.splitlines()) == sorted([*before, *after])

    def all_in_sync() -> bool:
        shown = json.loads(run_cli("topics", "describe", "orders", "-b", servers, "--json").stdout)
        topic = shown[0] if isinstance(shown, list) else shown
        return all(len(each["isr"]) == 3 for each in topic["partitions"])

    wait_until(all_in_sync, "every replica to be in the ISR again", timeout_s=60)
    assert pids(place) == nodes
    for each in place.glob("*/process.log"):
        assert "stopped" not in each.read_text(), each.read_text()
