"""The programs in docs/raft.md and examples/ need only what is public, and the page's runs as it stands."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import pytest

from metaquorum import raft

REPOSITORY = Path(__file__).resolve().parents[3]
PAGE = REPOSITORY / "docs" / "raft.md"
EXAMPLE = REPOSITORY / "examples" / "replicated_kv.py"
VOTERS = (raft.Voter(node_id=0, host="127.0.0.1", port=1),)


@pytest.fixture
def program() -> dict[str, Any]:
    (text,) = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(text, str(PAGE), "exec"), names)
    return names


@pytest.mark.parametrize("path", [PAGE, EXAMPLE])
def test_a_program_needs_only_what_is_public(path: Path) -> None:
    lines = path.read_text("utf-8").splitlines()
    found = [line for line in lines if re.match(r"(from|import) metaquorum", line)]
    assert found == ["from metaquorum import raft"]
    assert len(lines) < 100 or path == PAGE


def test_every_error_in_the_contract_is_public() -> None:
    named = set(re.findall(r"\b[A-Z]\w+Error\b", raft.__doc__ or ""))
    assert named == {"CommittedLostError", "DiskError", "RaftInvariantError", "RaftUsageError"}
    assert all(issubclass(getattr(raft, name), Exception) for name in named)


def opened(directory: str) -> raft.ReplicaStore:
    return raft.ReplicaStore.open(
        raft.PosixDisk(), directory, raft.LogConfig(segment_bytes=300), voter_ids=(0,), retention_bytes=1
    )


def test_a_restart_begins_from_the_snapshot(program: dict[str, Any], tmp_path: Path) -> None:
    directory = str(tmp_path / "replica")
    raft.create_directory(raft.PosixDisk(), directory, cluster_id="c", node_id=0, rng=random.Random(1))
    first = program["Total"](opened(directory), VOTERS)
    first.start()
    for number in range(1, 21):
        first.append([b"%d" % number])
    first.snapshot()
    first.append([b"1000"])
    assert first.total == 1210 and first.core.log_start_offset > 0
    first.store.close()

    second = program["Total"](opened(directory), VOTERS)
    assert second.total == 210
    second.start()
    assert second.total == 1210
    second.append([b"1"])
    assert second.total == 1211
    second.store.close()


def test_a_start_without_the_snapshot_is_refused(program: dict[str, Any], tmp_path: Path) -> None:
    directory = str(tmp_path / "replica")
    raft.create_directory(raft.PosixDisk(), directory, cluster_id="c", node_id=0, rng=random.Random(1))
    driver = program["Total"](opened(directory), VOTERS)
    driver.start()
    for number in range(20):
        driver.append([b"%d" % number])
    driver.snapshot()
    driver.store.close()
    store = opened(directory)
    with pytest.raises(raft.RaftUsageError, match="load the newest snapshot"):
        raft.BlockingDriver(store, VOTERS, raft.RaftConfig())
    store.close()
