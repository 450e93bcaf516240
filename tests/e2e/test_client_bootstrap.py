"""`produce` and `consume` with any node as the bootstrap server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from metaquorum.node.local_nodes import HOST, free_ports
from metaquorum.testing import Cluster
from tests.e2e.in_process import in_process
from tests.e2e.processes import run_cli

pytestmark = pytest.mark.e2e
KINDS = ["one broker", "dead one first"]


@pytest.fixture(scope="module", name="cluster")
def fixture_cluster() -> Iterator[Cluster]:
    with in_process(2, 3) as cluster:
        yield cluster


def bootstrap_of(cluster: Cluster, kind: str) -> str:
    broker = cluster.bootstrap_servers.split(",")[1]
    return broker if kind == "one broker" else f"{HOST}:{free_ports(1)[0]},{broker}"


@pytest.mark.parametrize("kind", KINDS)
def test_one_address_is_enough_to_write_and_read(cluster: Cluster, kind: str, tmp_path: Path) -> None:
    topic = kind.replace(" ", "-")
    cluster.create_topic(topic)
    bootstrap = bootstrap_of(cluster, kind)
    run_cli("produce", topic, "--count", 3, "-b", bootstrap)
    read = run_cli("consume", topic, "--until-end", "-b", bootstrap)
    assert len(read.stdout.splitlines()) == 3
    unknown = run_cli("consume", "nope", "--until-end", "-b", bootstrap, expect=1)
    assert "there is no topic nope; create it" in unknown.stderr
    assert unknown.stderr.count("\n") == 1


def test_a_group_continues_where_it_committed(cluster: Cluster) -> None:
    cluster.create_topic("grouped", partitions=2)
    brokers = cluster.bootstrap_servers
    command = ("consume", "grouped", "--group", "g", "--until-end", "-b", brokers)
    for count in (5, 2):
        run_cli("produce", "grouped", "--count", count, "-b", brokers)
        assert len(run_cli(*command).stdout.splitlines()) == count
