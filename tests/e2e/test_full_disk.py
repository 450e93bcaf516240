"""A full disk: the process ends with one line, the quorum continues, and nothing that was acknowledged is
lost.

There are two ways to cause it, because not every machine allows the first: a small tmpfs of the node's own
that is filled (ENOSPC, needs permission to mount), and a limit on the size of the running process's files
(EFBIG, works everywhere). The limit is set from outside on a running process, as a disk fills up.
"""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.cluster import Cluster, Node
from tests.e2e.load import Load, assert_nothing_lost

pytestmark = pytest.mark.e2e

DISK_BYTES = 8 * 1024 * 1024
LEFT_BYTES = 32 * 1024
WRITERS = 4


@contextlib.contextmanager
def small_disk(node: Node) -> Iterator[Path]:
    """Moves a formatted node onto a file system of its own; skips if mounting is not permitted."""
    disk = node.home / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(disk)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    try:
        data = disk / "data"
        subprocess.run(["mv", str(node.data), str(data)], check=True)
        node.data = data
        node.set_properties({"log.dirs": str(data)})
        yield disk
    finally:
        node.kill()
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


def fill(disk: Path) -> Path:
    """Leaves a few pages free; returns the file that takes the rest."""
    filler = disk / "filler"
    status = os.statvfs(disk)
    filler.write_bytes(bytes(status.f_bavail * status.f_frsize - LEFT_BYTES))
    return filler


def pick(cluster: Cluster, role: str) -> Node:
    """A node that has this role now; leadership is transferred to it or away from it if necessary."""
    node = cluster.controllers[0]
    quorum = cluster.quorum()
    if (quorum.leader_id == node.node_id) != (role == "leader"):
        target = node.node_id if role == "leader" else cluster.controllers[1].node_id
        cluster.call(lambda client: client.transfer_leadership(target))
        cluster.wait(lambda: cluster.quorum().leader_id == target, f"node {target} to lead")
    return node


def assert_one_clear_line(node: Node, *parts: str) -> None:
    assert node.exit_code == 1
    errors = [line for line in node.lines() if " ERROR " in line]
    assert errors == [node.last_line()], node.output()
    for part in (f"controller {node.node_id}: stopped: disk error in {node.metadata_log}", *parts):
        assert part in errors[0]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("full"), controllers=3, brokers=1) as running:
        running.start()
        yield running
        running.assert_no_bugs()


@pytest.mark.parametrize("role", ["leader", "follower"])
def test_no_space_left(tmp_path: Path, role: str) -> None:
    with Cluster(tmp_path, controllers=3, brokers=1) as cluster, small_disk(cluster.controllers[0]) as disk:
        cluster.start()
        node = pick(cluster, role)
        with Load(cluster, writers=WRITERS, rng=random.Random(role), prefix=role) as load:
            load.wait_more(10)
            filler = fill(disk)
            node.wait_exit()
            assert_one_clear_line(node, "no space left on the device; free some")
            load.wait_more(30)
            # While there is no space it does not start, and reports the same.
            size = sum(path.stat().st_size for path in node.segments())
            node.start()
            node.wait_exit()
            assert node.exit_code == 1
            assert "no space left on the device" in node.last_line()
            assert sum(path.stat().st_size for path in node.segments()) >= size - LEFT_BYTES
            filler.unlink()
            node.start()
            cluster.wait_caught_up(node)
            load.wait_more(10)
            load.stop()
        assert_nothing_lost(cluster, load, {})
        cluster.assert_no_bugs()


@pytest.mark.parametrize("role", ["leader", "follower"])
def test_a_file_that_may_not_grow(cluster: Cluster, role: str) -> None:
    earlier = cluster.topics()
    node = pick(cluster, role)
    with Load(cluster, writers=WRITERS, rng=random.Random(role), prefix=role) as load:
        load.wait_more(10)
        node.limit_file_size(node.segments()[-1].stat().st_size + LEFT_BYTES)
        node.wait_exit()
        assert_one_clear_line(node, "write of", str(node.segments()[-1]))
        load.wait_more(30)
        node.start()
        cluster.wait_caught_up(node)
        load.stop()
    assert_nothing_lost(cluster, load, earlier)
