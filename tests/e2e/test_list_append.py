"""Transactions of real clients that append to lists and read them, under kill -9 of brokers, are
serializable.

`make histories SECONDS=600` runs the same for longer.
"""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from tests.e2e.cluster import FAST_BROKERS, Cluster
from tests.histories.clients import ended, run_lists
from tests.histories.list_append import Outcome, judge

pytestmark = pytest.mark.e2e

KEYS, CLIENTS = 4, 3
QUICK = {"transaction.state.log.num.partitions": "2", "offsets.topic.num.partitions": "2"}


def run(folder: Path, seconds: float, seed: int) -> str:
    """Kills brokers while clients append and read; returns the number of transactions by their outcome.
    Raises AssertionError with every anomaly."""
    rng = random.Random(seed)
    with Cluster(folder, controllers=1, brokers=3, properties=FAST_BROKERS) as cluster:
        for node in cluster.brokers:
            node.set_properties(QUICK)
        cluster.start()
        cluster.create_topic("lists", partitions=KEYS, replicas=3)
        bootstrap = ",".join(f"127.0.0.1:{node.kafka_port}" for node in cluster.brokers)
        until = time.time() + seconds
        lists, threads = run_lists(bootstrap, "lists", KEYS, clients=CLIENTS, until=until, seed=seed)
        running = {each.node_id: "running" for each in cluster.brokers}
        while time.time() < until - 4:
            time.sleep(rng.uniform(1, 3))
            node = rng.choice(cluster.brokers)
            node.kill()
            time.sleep(rng.uniform(0, 2))
            node.start()
            cluster.wait_brokers(running)
        final = ended(lists, threads)
        anomalies = judge(lists.history, final)
        assert not anomalies, "\n".join(map(str, anomalies))
        cluster.assert_no_bugs()
    by_outcome = {each: sum(one.outcome is each for one in lists.history) for each in Outcome}
    return ", ".join(f"{count} {each.value}" for each, count in by_outcome.items())


def test_transactions_are_serializable_while_brokers_are_killed(tmp_path: Path) -> None:
    print(counts := run(tmp_path, 14, seed=1))
    committed = int(counts.split()[0])
    assert committed >= 3, counts
