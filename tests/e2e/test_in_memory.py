"""`local up --in-memory` and `--processes`: test clusters that a shell and kafkajs break at a port."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.kafkajs import node_environment
from tests.e2e.processes import run_cli, running, wait_until

pytestmark = pytest.mark.e2e

DRIVER = Path(__file__).with_name("kafkajs_faults.js")


@pytest.fixture(name="directory", scope="module")
def fixture_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    directory = tmp_path_factory.mktemp("in-memory") / "cluster"
    words = ("local", "up", "--in-memory", "--brokers", 2, "--controllers", 1, "-d", directory)
    with running(*words, text=True) as process:
        wait_until((directory / "control.json").exists, "the cluster to be up", timeout_s=90)
        yield directory
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=60)
    assert process.returncode == 143 and "Traceback" not in errors, errors
    assert output.startswith("up in memory, in this process: 3 nodes; Ctrl-C ends it\n")
    assert not (directory / "control.json").exists()


def fault(directory: Path, *words: str) -> Any:
    return json.loads(run_cli("fault", *words, "-d", directory).stdout)


def test_the_shell_breaks_it_and_moves_its_time(directory: Path) -> None:
    assert fault(directory, "nodes") == [0, 1, 3000]
    assert fault(directory, "create_topic", "name=orders", "replication_factor=2") == "orders"
    leader = fault(directory, "leader", "topic=orders", "partition=0")
    number = fault(directory, "kill", f"node={leader}")["fault"]
    fault(directory, "advance", "seconds=9")
    assert fault(directory, "leader", "topic=orders", "partition=0") == 1 - leader
    fault(directory, "heal", f"fault={number}")
    fault(directory, "wait_for_full_isr", "topic=orders")


def test_a_directory_has_one_cluster(directory: Path, tmp_path: Path) -> None:
    again = run_cli("local", "up", "--in-memory", "-d", directory, expect=1)
    assert "says that a cluster runs; end it" in again.stderr
    (tmp_path / "cluster.json").write_text("{}")
    other = run_cli("local", "up", "--in-memory", "-d", tmp_path, expect=1)
    assert "holds a cluster of `local up`; give another --directory" in other.stderr
    for kind in ("--in-memory", "--processes"):
        assert f"{kind} has neither --watch" in run_cli("local", "up", kind, "--watch", expect=2).stderr


def test_a_shell_breaks_nodes_that_are_processes(tmp_path: Path) -> None:
    words = ("local", "up", "--processes", "--brokers", 2, "--controllers", 1, "-d", tmp_path)
    with running(*words, text=True) as process:
        wait_until((tmp_path / "control.json").exists, "the cluster to be up", timeout_s=90)
        assert fault(tmp_path, "create_topic", "name=orders") == "orders"
        fault(tmp_path, "wait_for_full_isr", "topic=orders")
        follower = 1 - fault(tmp_path, "leader", "topic=orders", "partition=0")
        counted = fault(tmp_path, "observe", "api=CreateTopics")["fault"]
        copy = fault(tmp_path, "copy_disk", f"node={follower}")["copy"]
        paused = fault(tmp_path, "pause", f"node={follower}")["fault"]
        fault(tmp_path, "heal", f"fault={paused}")
        restored = fault(tmp_path, "restore_disk_from", f"earlier={copy}")["fault"]
        fault(tmp_path, "create_topic", "name=others", "replication_factor=1")
        assert fault(tmp_path, "hits", f"fault={counted}") == 1
        fault(tmp_path, "heal", f"fault={restored}")
        fault(tmp_path, "wait_for_full_isr", "topic=orders")
        refused = run_cli("fault", "advance", "days=1", "-d", tmp_path, expect=1).stderr
        assert refused.endswith(
            'to move the clock needs nodes in the process of the test: use Cluster(mode="in-process")\n'
        )
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=60)
    assert process.returncode == 143 and "Traceback" not in errors, errors
    assert output.startswith("up as processes: 3 nodes; Ctrl-C ends it\n")
    assert not (tmp_path / "control.json").exists()


def test_kafkajs_repeats_what_was_refused_and_what_it_never_heard_of(directory: Path) -> None:
    found = subprocess.run(
        ["node", str(DRIVER), str(directory / "control.json")],
        env=node_environment(),
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    answer = json.loads(found.stdout)
    # An idempotent producer repeats both, and the broker stores each once.
    assert answer == {"refused": 2, "lost": 1, "stored": ["refused twice", "never heard of"]}
