"""A broker that is restarted (SIGTERM, start): how long until it has stopped, and until it serves again
(S1.24).

Three controllers and three brokers as processes, default configuration. Before each restart the preferred
leaders are elected, so that the broker leads its share of the partitions.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from metaquorum.clients.admin.cluster import elect_leaders
from tests.bench.bench_restart import until_ready
from tests.bench.figures import Figure
from tests.e2e.cluster import Cluster, client_loop

READY_S = 60.0


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--partitions", type=int, default=3_000)
    parser.add_argument("--runs", type=int, default=5)


def run(options: argparse.Namespace) -> list[Figure]:
    stops: list[float] = []
    starts: list[float] = []
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as directory,
        Cluster(Path(directory), controllers=3, brokers=3) as cluster,
    ):
        cluster.start()
        cluster.create_topic("bounced", options.partitions, 3)
        for number in range(options.runs):
            took = bounced(cluster, number % 3)
            stops.append(took[0])
            starts.append(took[1])
        cluster.assert_no_bugs()
    whole = [stop + start for stop, start in zip(stops, starts, strict=True)]
    share = options.partitions // 3
    return [
        Figure(
            name=f"SIGTERM to its end, {share:,} leaders moved", value=statistics.median(stops), unit="ms"
        ),
        Figure(name="its start to serving clients", value=statistics.median(starts), unit="ms"),
        Figure(name=f"the whole bounce, median of {len(whole)}", value=statistics.median(whole), unit="ms"),
        Figure(name="the whole bounce, worst", value=max(whole), unit="ms"),
    ]


def bounced(cluster: Cluster, broker_id: int) -> tuple[float, float]:
    """(ms until it ended, ms from its start until it serves)."""
    cluster.kafka(lambda client: elect_leaders(client, unclean=False, partitions=None))
    (broker,) = [one for one in cluster.brokers if one.node_id == broker_id]
    begin = time.perf_counter()
    code = broker.stop()
    if code != 0:
        raise RuntimeError(f"{broker.name} ended with {code}\n{broker.output()}")
    ended = time.perf_counter()
    target = cluster.quorum().high_watermark
    start = time.perf_counter()
    broker.start()
    client_loop().call(until_ready(broker, target), READY_S + 5)
    return (ended - begin) * 1000, (time.perf_counter() - start) * 1000
