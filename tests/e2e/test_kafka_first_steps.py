"""The first five lines of docs/clients.md, as they stand there, on what `metaquorum local up` starts."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("kafka-first-steps")]
REPOSITORY = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-m", "metaquorum.cli"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
ENVIRONMENT.pop("METAQUORUM_BOOTSTRAP", None)
USUAL = "127.0.0.1:19490"


def run(*args: object) -> str:
    words = [*COMMAND, *map(str, args)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=100, env=ENVIRONMENT, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(name="bootstrap", scope="module")
def fixture_bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("local") / "cluster"
    printed = run("local", "up", "-d", directory, "--controllers", 1, "--brokers", 1, "--free-ports")
    try:
        status = json.loads(run("local", "status", "-d", directory, "--json"))
        assert f"bootstrap.servers={status['bootstrapServers']}\n" in printed
        created = ("topics", "create", "orders", "--replication-factor", 1)
        run(*created, "--bootstrap", status["bootstrap"])
        yield status["bootstrapServers"]
    finally:
        run("local", "down", "-d", directory)


def steps(language: str, client: str) -> str:
    """The lines of the page for a client."""
    page = (REPOSITORY / "docs/clients.md").read_text()
    blocks = re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)
    return next(block for block in blocks if client in block)


@pytest.mark.parametrize(
    ("client", "output"),
    [("confluent_kafka", "b'a book'"), ("from kafka ", "b'a book'"), ("aiokafka", "RecordMetadata")],
)
def test_python_clients(bootstrap: str, client: str, output: str) -> None:
    words = [sys.executable, "-c", steps("python", client).replace(USUAL, bootstrap)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=100, check=False)
    assert output in done.stdout, done.stderr


def test_kafkajs(bootstrap: str) -> None:
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("there is no node or no npm")
    folders = subprocess.run([npm, "root", "-g"], capture_output=True, text=True, check=True).stdout.strip()
    environment = {**os.environ, "NODE_PATH": f"{os.environ.get('NODE_PATH', '')}:{folders}"}
    probe = subprocess.run(
        [node, "-e", "require('kafkajs')"], env=environment, capture_output=True, check=False
    )
    if probe.returncode:
        pytest.skip("kafkajs is not installed: npm install -g kafkajs, or name its folder in NODE_PATH")
    words = [node, "-e", steps("javascript", "kafkajs").replace(USUAL, bootstrap)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=100, env=environment, check=False)
    assert "baseOffset" in done.stdout, done.stdout + done.stderr
