"""Credentials are readable only by the user that runs a node: modes of all files of a cluster, and what log
tools show live.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.e2e.processes import run_cli

pytestmark = pytest.mark.e2e
SECRET_FIELDS = ("salt", "storedKey", "serverKey")


def modes(directory: Path) -> dict[str, int]:
    """Modes of everything below a directory, by path."""
    found = {}
    for folder, _, names in os.walk(directory):
        for path in (Path(folder), *(Path(folder) / name for name in names)):
            found[str(path.relative_to(directory))] = path.stat().st_mode & 0o777
    return found


def test_others_can_read_nothing_that_a_cluster_with_scram_users_wrote(tmp_path: Path) -> None:
    home = tmp_path / "made" / "cluster"
    before = os.umask(0)  # others must have no permission even if an operator's umask allows it
    try:
        run_cli("local", "up", "-d", home, "--controllers", 1, "--brokers", 1, "--free-ports")
        status = json.loads(run_cli("local", "status", "-d", home, "--json").stdout)
        bootstrap = status["bootstrap"]
        words = ("users", "scram", "set", "alice", "--password-stdin", "-b", status["bootstrapServers"])
        run_cli(*words, given="a password of hers\n")
        run_cli("topics", "create", "orders", "-b", status["bootstrapServers"])
        live = {
            secrets: run_cli(
                "log", "dump", "--json", "-b", bootstrap, *(["--secrets"] if secrets else [])
            ).stdout
            for secrets in (False, True)
        }
        text = (
            run_cli("log", "dump", "-b", bootstrap).stdout + run_cli("log", "state", "-b", bootstrap).stdout
        )
    finally:
        run_cli("local", "down", "-d", home, expect=None)
        os.umask(before)
    record = next(row for row in map(json.loads, live[True].splitlines()) if "SCRAM" in row["type"])
    for name in SECRET_FIELDS:
        assert record["data"][name] not in live[False] + text, name
    found = modes(tmp_path / "made")
    kinds = {Path(name).suffix or Path(name).name for name in found}
    assert {".log", ".checkpoint", "quorum-state", ".properties", "leader-epoch-checkpoint"} <= kinds, kinds
    open_to_others = {name: oct(mode) for name, mode in found.items() if mode & 0o077}
    assert open_to_others == {}
