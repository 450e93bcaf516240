"""`log watch` beside a cluster that breaks, itself killed and started again: every incident arrives."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.cluster import Cluster
from tests.e2e.processes import Process, run_cli, wait_until
from tests.unit.cli.test_log_watch import HookServer, hook_server

pytestmark = pytest.mark.e2e


@pytest.fixture(name="cluster")
def fixture_cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path / "cluster", controllers=3, brokers=2) as made:
        made.start()
        yield made
        made.assert_no_bugs()


def ids(server: HookServer) -> list[str]:
    return [str(body["id"]) for _, _, body in list(server.seen)]


def critical(server: HookServer, kind: str) -> list[dict[str, Any]]:
    return [body for _, _, body in list(server.seen) if body["kind"] == kind]


def test_every_incident_of_a_breaking_cluster_arrives_though_the_watch_is_killed(
    cluster: Cluster, tmp_path: Path
) -> None:
    state = tmp_path / "state.json"
    with hook_server() as server:
        url = f"http://127.0.0.1:{server.server_port}/"
        words = ("log", "watch", "--bootstrap", cluster.bootstrap, "--webhook", url, "--state", state)
        watch = Process("watch", [*words, "--timeout", "3"], tmp_path / "watch.log")
        watch.start()
        watch.wait_for_line("incidents from offset")
        begun = json.loads(state.read_text())["offset"]
        cluster.create_topic("orders", 2, 2)
        one, other = cluster.brokers

        one.kill()
        wait_until(lambda: critical(server, "broker fenced"), "the death of a broker")
        watch.kill()
        other.kill()  # nobody watches
        cluster.wait_brokers({one.node_id: "fenced", other.node_id: "fenced"})
        watch.start()
        wait_until(lambda: critical(server, "leaderless"), "what happened while nobody watched")

        server.status = 503
        one.start()
        cluster.wait_brokers({one.node_id: "running"})
        one.kill()
        cluster.wait_brokers({one.node_id: "fenced"})
        watch.kill()  # while a report is refused
        server.status = 204
        cluster.leader().kill()
        cluster.wait_leader()
        watch.start()

        def expected() -> list[str]:
            where = ("--bootstrap", cluster.bootstrap, "--severity", "warning", "--json")
            told = run_cli("log", "timeline", *where)
            found = [json.loads(line) for line in told.stdout.splitlines()]
            return [
                f"{cluster.cluster_id}:{each['offset']}:{each['kind'].replace(' ', '-')}:{each['entity']}"
                for each in found
                if each["offset"] >= begun and not each["kind"].startswith("still ")
            ]

        wanted = expected()
        wait_until(
            lambda: set(wanted) <= set(ids(server)),
            "every incident",
            details=lambda: f"{sorted(set(wanted) - set(ids(server)))}\n{watch.output()}",
        )
        assert watch.stop() == 143
        assert len(wanted) >= 4 and set(ids(server)) <= set(expected())
        assert json.loads(state.read_text())["clusterId"] == cluster.cluster_id
