"""What runs on macOS, and what on Windows, on a Linux that lacks what they lack (`tests.systems.hidden`).

Children inherit it, and it is gone before anything is imported. macOS also has 256 open files.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.e2e.processes import REPOSITORY
from tests.systems.hidden import FILES_MAX, environment

pytestmark = pytest.mark.e2e

WAIT_S = 240.0
STORAGE = (
    "tests/conformance/test_disk.py",
    "tests/properties/test_storage_crash.py",
    "tests/unit/storage/test_what_returned_is_durable.py",
)


def run(system: str, *words: object, given: str | None = None, code: int = 0) -> str:
    """A program of Python, and what it printed."""
    done = subprocess.run(
        [sys.executable, *map(str, words)],
        env=environment(system),
        input=given,
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def command(*words: object, given: str | None = None) -> str:
    return run("macos", "-m", "metaquorum.cli", *words, given=given)


@pytest.mark.parametrize(
    ("system", "shown"),
    [("macos", f"False F_FULLFSYNC False {FILES_MAX}"), ("windows", "False fsync False")],
)
def test_it_is_really_hidden_also_from_children(system: str, shown: str) -> None:
    asks = (
        "import os; from metaquorum import platforms as p;"
        "print(hasattr(os, 'fdatasync'), p.name_of_sync(), p.forks_are_safe(), *LIMIT)"
    ).replace(
        "*LIMIT",
        "__import__('resource').getrlimit(7)[0]" if system == "macos" else "sep=' '",
    )
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {asks!r}], check=True)"
    assert run(system, "-c", child).strip() == shown


def test_storage_conforms_and_survives_every_crash_point() -> None:
    said = run("macos", "-m", "pytest", "-n", "0", "-q", "-p", "no:cacheprovider", *STORAGE)
    assert "passed" in said or "100%" in said


def test_a_cluster_is_killed_and_loses_nothing(tmp_path: Path) -> None:
    place = ("-d", tmp_path / "c")
    up = command("local", "up", *place, "--combined", "3", "--free-ports")
    servers = up.split("bootstrap.servers=")[1].split()[0]
    try:
        topic = ("--partitions", "3", "--replication-factor", "3")
        command("topics", "create", "orders", *topic, "-b", servers)
        lines = [f"line {number}" for number in range(500)]
        command("produce", "orders", "-b", servers, "--no-progress", given="\n".join(lines))
        for record in sorted((tmp_path / "c").glob("*/process.json")):
            pid = int(record.read_text().split('"pid":')[1].split(",")[0])
            process = psutil.Process(pid)
            process.kill()
            process.wait(30)
        command("local", "up", *place)
        read = command(
            *("consume", "orders", "-b", servers, "--from", "earliest", "--until-end", "--no-progress")
        )
        assert sorted(read.splitlines()) == sorted(lines)
    finally:
        command("local", "down", *place)


def test_log_tools_say_the_same_on_windows() -> None:
    logs = [
        "tests/data/kafka-3.7-upgrade",
        "cli/kafka_log/00000000000000000000.log",
        *map(str, sorted(Path("tests/data/unclean-elections").glob("*.log"))),
    ]
    check_same(logs)


@pytest.mark.shared_data
def test_log_tools_say_the_same_of_every_golden_log(shared_data: Path) -> None:
    logs = [each for each in shared_data.rglob("__cluster_metadata-0") if any(each.glob("*.log"))]
    small = [
        os.path.relpath(each, REPOSITORY)
        for each in sorted(logs)
        if sum(one.stat().st_size for one in each.iterdir()) < 150_000
    ]
    assert len(small) > 5
    check_same(small)


@pytest.mark.shared_data
def test_the_pipeline_reads_the_same_on_windows(shared_data: Path) -> None:
    """Without a JVM: what Spark calls there."""
    pytest.importorskip("pyarrow")
    logs = sorted((shared_data / "kafka-3.7" / "upgrade").glob("*-*/meta.properties"))
    check_same([os.path.relpath(each.parent, REPOSITORY) for each in logs], "tests.systems.pipeline")


def check_same(logs: list[str], asking: str = "tests.systems.tools") -> None:
    here = subprocess.run(
        [sys.executable, "-m", asking, *logs],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=True,
    )
    assert run("windows", "-m", asking, *logs) == here.stdout
    assert logs and here.stdout.count("\n") > 10 * len(logs)
