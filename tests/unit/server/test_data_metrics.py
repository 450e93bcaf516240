"""The figures of a broker that holds data, right after records came and went and a directory was lost."""

from __future__ import annotations

import random
from pathlib import Path

from metaquorum.clients.quorum.admin import AdminClient
from metaquorum.clients.quorum.nodes import mark_log_dir_offline
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.requests.common import NewTopic
from metaquorum.metadata.requests.data import MarkLogDirOfflineRequest
from metaquorum.storage.disk.posix import PosixDisk
from metaquorum.storage.files.meta_properties import MetaProperties, store_meta_properties
from metaquorum.storage.uuids import random_uuid
from tests.broker_calls import batch, calls_to
from tests.topics import create_topics
from tests.unit.server.nodes import (
    CLUSTER_ID,
    Site,
    free_port,
    new_site,
    running_broker,
    running_controller,
)
from tests.unit.server.test_metrics import Scrape, listener, until
from tests.unit.server.test_servers import SERVING, health_is

REPLICAS = "kafka_server_ReplicaManager_"
TRAFFIC = "kafka_server_BrokerTopicMetrics_"
TIMES = "kafka_network_RequestMetrics_TotalTimeMs_count"
FLUSHES = "kafka_log_LogFlushStats_LogFlushRateAndTimeMs_count"
OFFLINE = (
    "kafka_log_LogManager_OfflineLogDirectoryCount",
    "kafka_server_LogManager_OfflineLogDirectoryCount",
    "kafka_server_LogManager_OfflineLogDirectoriesCount",
)
PARTITIONS = 4


def two_directories(site: Site) -> list[Path]:
    """Formatted ones for partitions, beside that of the metadata log."""
    paths = [site.root / name for name in ("data-1", "data-2")]
    for number, path in enumerate(paths):
        path.mkdir()
        own = random_uuid(random.Random(500 + number))
        store_meta_properties(
            PosixDisk(), str(path), MetaProperties(cluster_id=CLUSTER_ID, node_id=101, directory_id=own)
        )
    return paths


async def test_traffic_syncs_and_a_lost_directory(tmp_path: Path) -> None:
    site, port = new_site(tmp_path), free_port()
    paths, two = two_directories(site), batch([b"one", b"two"])
    file = site.broker_file(
        {
            **listener(port),
            "log.dirs": ",".join(map(str, paths)),
            "metadata.log.dir": str(site.root / "broker"),
            "broker.heartbeat.interval.ms": "100",
        }
    )
    async with running_controller(site.controller_file()), running_broker(file):
        await health_is(site.broker_port, SERVING)
        async with AdminClient([("127.0.0.1", site.controller_port)], timeout_ms=20_000) as client:
            await create_topics(client, [NewTopic(name="t", partitions=PARTITIONS, replication_factor=1)])
            ready = await until(port, lambda page: page.value(REPLICAS + "LeaderCount") == PARTITIONS)
            async with calls_to(site.kafka_port) as calls:
                # Leaders follow when their directories are committed.
                while (await calls.produce("t", two)).error_code:
                    pass
                before = await until(port, lambda page: True)
                refused = (await calls.produce("t", two[:-1] + bytes([two[-1] ^ 1]))).error_code
                fetched = bytes((await calls.fetch_one("t", max_wait_ms=1_000)).records or b"")
                after = await until(port, lambda page: page.value(TRAFFIC + "BytesOutPerSec_total") > 0)
            lose = MarkLogDirOfflineRequest(path=str(paths[0]))
            await mark_log_dir_offline(("127.0.0.1", site.broker_port), lose, timeout_ms=20_000)
            lost = await until(port, lambda page: page.value(OFFLINE[0]) == 1)
            fewer = await until(port, lambda page: page.value(REPLICAS + "LeaderCount") < PARTITIONS)

    def offline(page: Scrape) -> list[float]:
        names = [page.value(name) for name in OFFLINE]
        directory = "kafka_log_LogManager_LogDirectoryOffline"
        return [*names, *(page.value(directory, logDirectory=str(path)) for path in paths)]

    assert (ready.value(REPLICAS + "PartitionCount"), offline(ready)) == (PARTITIONS, [0] * 5)
    assert ready.value(REPLICAS + "OfflineReplicaCount") == 0
    assert ready.value(REPLICAS + "UnderReplicatedPartitions") == 0
    assert ready.value(REPLICAS + "UnderMinIsrPartitionCount") == 0
    assert ready.value(REPLICAS + "AtMinIsrPartitionCount") == PARTITIONS
    assert ready.value(TRAFFIC + "BytesInPerSec_total") == 0

    assert before.value(TRAFFIC + "BytesInPerSec_total") == len(two)
    assert before.value(TRAFFIC + "MessagesInPerSec_total") == 2
    assert before.value(TIMES, request="Produce") >= 1
    assert sum(before.samples.get((FLUSHES, (("directory", str(path)),)), 0) for path in paths) >= 1
    assert before.value(FLUSHES, directory="metadata") >= 1

    assert refused == ErrorCode.CORRUPT_MESSAGE
    errors = "kafka_network_RequestMetrics_ErrorsPerSec_total"
    assert after.value(errors, request="Produce", error="CORRUPT_MESSAGE") == 1
    assert after.value(TRAFFIC + "BytesInPerSec_total") == before.value(TRAFFIC + "BytesInPerSec_total")
    assert after.value(TRAFFIC + "BytesOutPerSec_total") == len(fetched) > 0
    assert after.value(TIMES, request="FetchConsumer") == 1
    failed = TRAFFIC + "FailedProduceRequestsPerSec_total"
    assert after.value(failed) == before.value(failed) + 1

    assert offline(lost) == [1, 1, 1, 1, 0]
    assert fewer.value(REPLICAS + "LeaderCount") == PARTITIONS / 2
    assert fewer.value(REPLICAS + "OfflineReplicaCount") == PARTITIONS / 2
    assert fewer.value(REPLICAS + "PartitionCount") == PARTITIONS
