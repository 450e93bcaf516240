"""The program in docs/raft.md runs as it stands: it begins from its snapshot after a restart."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import pytest

from metaquorum import raft
from metaquorum.raft.errors import RaftUsageError
from metaquorum.storage.disk.posix import PosixDisk
from metaquorum.storage.log.log import LogConfig

PAGE = Path(__file__).resolve().parents[3] / "docs" / "raft.md"
VOTERS = (raft.Voter(node_id=0, host="127.0.0.1", port=1),)


@pytest.fixture
def program() -> dict[str, Any]:
    (text,) = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(text, str(PAGE), "exec"), names)
    return names


def opened(directory: str) -> raft.ReplicaStore:
    return raft.ReplicaStore.open(
        PosixDisk(), directory, LogConfig(segment_bytes=300), voter_ids=(0,), retention_bytes=1
    )


def test_a_restart_begins_from_the_snapshot(program: dict[str, Any], tmp_path: Path) -> None:
    directory = str(tmp_path / "replica")
    raft.create_directory(PosixDisk(), directory, cluster_id="c", node_id=0, rng=random.Random(1))
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
    raft.create_directory(PosixDisk(), directory, cluster_id="c", node_id=0, rng=random.Random(1))
    driver = program["Total"](opened(directory), VOTERS)
    driver.start()
    for number in range(20):
        driver.append([b"%d" % number])
    driver.snapshot()
    driver.store.close()
    store = opened(directory)
    with pytest.raises(RaftUsageError, match="load the newest snapshot"):
        raft.BlockingDriver(store, VOTERS, raft.RaftConfig())
    store.close()
