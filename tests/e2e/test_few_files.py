"""Brokers with many partitions and few file descriptors: they serve, and shut down cleanly."""

from __future__ import annotations

from pathlib import Path

import confluent_kafka
import pytest

from tests.e2e.cluster import Cluster
from tests.e2e.processes import wait_until

pytestmark = pytest.mark.e2e

FILES = 256
"""macOS's default; a soft limit of 1,024 and 800 partitions are the same in large."""
PARTITIONS = 200


def test_more_segments_than_files_are_served_and_closed_cleanly(tmp_path: Path) -> None:
    with Cluster(tmp_path, controllers=1, brokers=3, log_dirs=3) as cluster:
        for node in cluster.nodes:
            node.start(prefix=("sh", "-c", f'ulimit -n {FILES}; exec "$@"', "sh"))
        for node in cluster.nodes:
            node.wait_for_line("listens on", timeout_s=60)
            assert f"limit of open files {FILES}: " in node.output()
        cluster.wait_brokers({node.node_id: "running" for node in cluster.brokers})
        cluster.create_topic("many", partitions=PARTITIONS, replicas=3)

        failed: list[object] = []
        producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap_servers, "acks": "all"})
        for turn in range(3):
            for partition in range(PARTITIONS):
                producer.produce(
                    "many",
                    b"%d %d" % (turn, partition),
                    partition=partition,
                    on_delivery=lambda error, _: error and failed.append(error),
                )
                producer.poll(0)
            assert producer.flush(90) == 0
        assert failed == []

        def replicated() -> bool:
            return all(len(part.isr) == 3 for part in cluster.partitions("many"))

        wait_until(replicated, "every replica to be in sync", timeout_s=60)
        for node in cluster.brokers:
            open_files = len(list(Path(f"/proc/{node.pid}/fd").iterdir()))
            assert open_files < FILES
        assert cluster.stop() == dict.fromkeys((node.name for node in cluster.nodes), 0)
        for node in cluster.nodes:
            assert "too many open files" not in node.output() and "offline" not in node.output()
