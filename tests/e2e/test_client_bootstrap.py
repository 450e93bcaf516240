"""Clients of a real cluster: whichever node they are told of, and many first sends at once."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from metaquorum.cli.layout import free_ports
from metaquorum.runtime.client.admin import parse_bootstrap
from metaquorum.runtime.data_client.connections import GrpcConnections
from metaquorum.runtime.data_client.consumer import Consumer, Start, StartKind
from metaquorum.runtime.data_client.producer import Producer
from tests.e2e.cluster import HOST, Cluster, client_loop
from tests.e2e.processes import ENVIRONMENT, REPOSITORY, run_cli

pytestmark = pytest.mark.e2e
KINDS = ["active controller", "standby controller", "broker", "dead one first", "standby of a lost quorum"]


@pytest.fixture(scope="module", name="cluster")
def fixture_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("bootstrap"), controllers=3, brokers=2) as cluster:
        cluster.start()
        yield cluster
        cluster.assert_no_bugs()


def bootstrap_of(cluster: Cluster, kind: str) -> str:
    leader_id = cluster.quorum().leader_id
    standbys = [node.address for node in cluster.controllers if node.node_id != leader_id]
    match kind:
        case "active controller":
            return cluster.controller(leader_id).address
        case "broker":
            return cluster.brokers[1].address
        case "dead one first":
            return f"{HOST}:{free_ports(1)[0]},{standbys[0]}"
        case _:
            return standbys[0]


@pytest.mark.parametrize("kind", KINDS[:-1])
def test_one_address_of_any_node_is_enough_to_write_and_read(
    cluster: Cluster, kind: str, tmp_path: Path
) -> None:
    topic = kind.replace(" ", "-")
    cluster.create_topic(topic)
    bootstrap = bootstrap_of(cluster, kind)
    run_cli("produce", topic, "--count", 3, "-b", bootstrap)
    read = run_cli("consume", topic, "--until-end", "-b", bootstrap)
    assert len(read.stdout.splitlines()) == 3
    unknown = run_cli("consume", "nope", "--until-end", "-b", bootstrap, expect=1)
    assert "there is no topic nope; create it" in unknown.stderr
    assert unknown.stderr.count("\n") == 1
    assert run_cli("topics", "list", "-b", bootstrap).returncode == 0


def test_the_example_of_the_documentation_runs_as_it_stands(cluster: Cluster, tmp_path: Path) -> None:
    cluster.create_topic("orders")
    text = (REPOSITORY / "docs" / "clients.md").read_text()
    examples = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (example,) = [each for each in examples if "METAQUORUM_BOOTSTRAP" in each]
    for kind in KINDS[:-1]:
        done = subprocess.run(
            [sys.executable, "-c", example],
            env={**ENVIRONMENT, "METAQUORUM_BOOTSTRAP": bootstrap_of(cluster, kind)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        offset, *records = done.stdout.splitlines()
        assert re.fullmatch(r"offset \d+", offset)
        assert records[:3] == ["0 b'alice' b'book'", "1 None b'pen'", "2 None b'lamp'"]


def test_a_thousand_first_sends_at_once_land_in_their_order(cluster: Cluster) -> None:
    cluster.create_topic("burst", replicas=2)

    async def send_all() -> list[int]:
        connections = GrpcConnections()
        asked = 0
        ask = connections.metadata

        async def counted(*arguments: object, **more: object) -> object:
            nonlocal asked
            asked += 1
            return await ask(*arguments, **more)  # type: ignore[arg-type]

        connections.metadata = counted  # type: ignore[method-assign, assignment]
        try:
            async with Producer(connections, parse_bootstrap(cluster.bootstrap)) as producer:
                receipts = await asyncio.gather(
                    *(producer.send("burst", b"message %d" % at) for at in range(1_000))
                )
                offsets = [await each for each in receipts]
                # One question, or two where the first met a standby: never one for each send.
                assert asked <= 4
            async with Consumer(connections, parse_bootstrap(cluster.bootstrap)) as consumer:
                await consumer.assign({("burst", 0): Start(StartKind.EARLIEST)})
                values: list[bytes | None] = []
                while len(values) < 1_000:
                    chunk = await consumer.poll(timeout_ms=30_000)
                    assert chunk is not None, f"{len(values)} messages came"
                    values += [record.value for record in chunk.records]
            assert values == [b"message %d" % at for at in range(1_000)]
        finally:
            await connections.close()
        return offsets

    assert client_loop().call(send_all()) == list(range(1_000))


def test_a_group_continues_where_it_committed(cluster: Cluster) -> None:
    cluster.create_topic("grouped", partitions=2)
    brokers = ",".join(f"{HOST}:{node.kafka_port}" for node in cluster.brokers)
    command = ("consume", "grouped", "--group", "g", "--until-end", "-b", brokers)
    for count in (5, 2):
        run_cli("produce", "grouped", "--count", count, "-b", brokers)
        assert len(run_cli(*command).stdout.splitlines()) == count


def test_a_standby_of_a_lost_quorum_still_leads_to_the_brokers(tmp_path: Path) -> None:
    with Cluster(tmp_path, controllers=3, brokers=1) as cluster:
        cluster.start()
        cluster.create_topic("orders")
        standby = bootstrap_of(cluster, KINDS[-1])
        run_cli("produce", "orders", "--count", 3, "-b", standby)
        cluster.kill_all([node for node in cluster.controllers if node.address != standby])
        read = run_cli("consume", "orders", "--until-end", "-b", standby, expect=None)
        assert (read.returncode, len(read.stdout.splitlines())) == (0, 3), read.stderr
