"""The figures of running controllers and brokers: every name is there, and the values follow what happens."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import math
import operator
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from metaquorum.clients.quorum.admin import AdminClient
from metaquorum.config.load import load_config
from metaquorum.errors import ConfigError
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.requests.common import NewTopic
from metaquorum.observability.metrics.catalogue import BROKER, CONTROLLER, METRICS
from metaquorum.storage.uuids import random_uuid, uuid_to_text
from tests.topics import create_topics, delete_topics
from tests.unit.server.nodes import (
    CLUSTER_ID,
    Site,
    formatted,
    free_port,
    new_site,
    running_broker,
    running_controller,
)
from tests.unit.server.test_servers import SERVING, health_is

RAFT = "kafka_server_raft_metrics_"
KAFKA = "kafka_controller_KafkaController_"
OWN = "kafka_server_broker_metadata_metrics_"

K20 = {
    *(RAFT + name for name in ("current_state", "current_leader", "current_vote", "current_epoch")),
    *(RAFT + name for name in ("high_watermark", "log_end_offset", "number_unknown_voter_connections")),
    *(RAFT + name for name in ("commit_latency_avg", "commit_latency_max")),
    *(RAFT + name for name in ("election_latency_avg", "election_latency_max")),
    *(RAFT + name for name in ("fetch_records_rate", "append_records_rate", "poll_idle_ratio_avg")),
    "kafka_server_MetadataLoader_CurrentMetadataVersion",
    "kafka_server_MetadataLoader_HandleLoadSnapshotCount",
    "kafka_server_SnapshotEmitter_LatestSnapshotGeneratedBytes",
    "kafka_server_SnapshotEmitter_LatestSnapshotGeneratedAgeMs",
}
K21_CONTROLLER = {
    "kafka_controller_ControllerEventManager_EventQueueTimeMs",
    "kafka_controller_ControllerEventManager_EventQueueProcessingTimeMs",
    *(KAFKA + name for name in ("ActiveControllerCount", "FencedBrokerCount", "ActiveBrokerCount")),
    *(KAFKA + name for name in ("GlobalTopicCount", "GlobalPartitionCount", "OfflinePartitionsCount")),
    *(KAFKA + name for name in ("PreferredReplicaImbalanceCount", "MetadataErrorCount")),
    *(KAFKA + name for name in ("LastAppliedRecordOffset", "LastCommittedRecordOffset")),
    *(KAFKA + name for name in ("LastAppliedRecordTimestamp", "LastAppliedRecordLagMs")),
    *(KAFKA + name for name in ("TimedOutBrokerHeartbeatCount", "EventQueueOperationsStartedCount")),
    *(KAFKA + name for name in ("EventQueueOperationsTimedOutCount", "NewActiveControllersCount")),
}
K21_BROKER = {
    *(OWN + name for name in ("last_applied_record_offset", "last_applied_record_timestamp")),
    *(OWN + name for name in ("last_applied_record_lag_ms", "metadata_load_error_count")),
    OWN + "metadata_apply_error_count",
}
PROCESS = {"process_resident_memory_bytes", "process_cpu_seconds", "process_open_fds"}


@dataclass
class Scrape:
    """One page, parsed."""

    text: str

    def __post_init__(self) -> None:
        self.families = {each.name: each for each in text_string_to_metric_families(self.text)}
        self.samples = {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in self.families.values()
            for sample in family.samples
        }

    def value(self, name: str, **labels: str) -> float:
        return self.samples[name, tuple(sorted(labels.items()))]


async def scrape(port: int) -> Scrape:
    def get() -> str:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        try:
            connection.request("GET", "/metrics")
            answer = connection.getresponse()
            assert answer.status == 200
            return answer.read().decode()
        finally:
            connection.close()

    return Scrape(await asyncio.to_thread(get))


async def until(port: int, holds: Callable[[Scrape], bool]) -> Scrape:
    async with asyncio.timeout(240):
        while not holds(found := await scrape(port)):
            pass
    return found


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return new_site(tmp_path)


def listener(port: int) -> dict[str, str]:
    return {"metrics.listener": f"http://127.0.0.1:{port}"}


async def test_every_name_is_there_and_nothing_else(site: Site) -> None:
    ports = free_port(), free_port()
    async with (
        running_controller(site.controller_file(listener(ports[0]))),
        running_broker(site.broker_file(listener(ports[1]))),
    ):
        await health_is(site.broker_port, SERVING)
        controller, broker = await scrape(ports[0]), await scrape(ports[1])
    assert K20 | K21_CONTROLLER | PROCESS <= controller.families.keys()
    assert K20 | K21_BROKER | PROCESS <= broker.families.keys()
    for page, role in ((controller, CONTROLLER), (broker, BROKER)):
        ours = {name for name in page.families if not name.startswith(("process_", "python_"))}
        assert ours <= METRICS.keys()
        assert all(role in METRICS[name].roles for name in ours)
        assert {METRICS[name].kind for name in ours} == {"gauge", "counter", "histogram"}
        assert all(page.families[name].type == METRICS[name].kind for name in ours)
    assert {
        name for name, metric in METRICS.items() if CONTROLLER in metric.roles
    } <= controller.families.keys()


async def test_the_quorum_and_the_cluster_as_they_change(site: Site) -> None:
    port = free_port()
    async with running_controller(site.controller_file(listener(port))) as process:
        # Active, and its first records are committed.
        level = "kafka_server_MetadataLoader_CurrentMetadataVersion"
        first = await until(port, lambda page: page.value(level) == 19)
        async with AdminClient([("127.0.0.1", site.controller_port)], timeout_ms=20_000) as client:
            async with running_broker(site.broker_file()):
                await health_is(site.broker_port, SERVING)
                made = await create_topics(client, [NewTopic(name="t", partitions=3, replication_factor=1)])
                assert made[0].error is ErrorCode.NONE
                refused = await create_topics(client, [NewTopic(name="t", partitions=1)])
                assert refused[0].error is ErrorCode.TOPIC_ALREADY_EXISTS
                up = await scrape(port)
            fenced = await scrape(port)
            await delete_topics(client, ["t"])
        last = await scrape(port)
        raft = process.node.raft
        assert last.value(RAFT + "log_end_offset") <= raft.log_end_offset

    assert first.value(RAFT + "current_state", state="leader") == 1
    assert sum(value for (name, _), value in first.samples.items() if name == RAFT + "current_state") == 1
    assert first.value(RAFT + "current_leader") == first.value(RAFT + "current_vote") == 1
    assert first.value(RAFT + "current_epoch") == first.value(RAFT + "log_end_epoch") == 1
    assert first.value(KAFKA + "NewActiveControllersCount") == 1
    assert first.value("metaquorum_raft_election_ms_count") == 1
    assert first.value(RAFT + "election_latency_max") > 0
    assert first.value(RAFT + "number_unknown_voter_connections") == 0
    assert first.value(KAFKA + "ActiveControllerCount") == 1
    assert (
        first.value(
            "metaquorum_node_info", node_id="1", role="controller", cluster_id=CLUSTER_ID, version="0.1.0"
        )
        == 1
    )

    def brokers(page: Scrape) -> tuple[float, ...]:
        return page.value(KAFKA + "ActiveBrokerCount"), page.value(KAFKA + "FencedBrokerCount")

    def partitions(page: Scrape) -> tuple[float, ...]:
        names = ("GlobalTopicCount", "GlobalPartitionCount", "OfflinePartitionsCount")
        return (
            *(page.value(KAFKA + name) for name in names),
            page.value(KAFKA + "PreferredReplicaImbalanceCount"),
        )

    assert (brokers(first), partitions(first)) == ((0, 0), (0, 0, 0, 0))
    assert (brokers(up), partitions(up)) == ((1, 0), (1, 3, 0, 0))
    assert (brokers(fenced), partitions(fenced)) == ((0, 1), (1, 3, 3, 3))
    assert (brokers(last), partitions(last)) == ((0, 1), (0, 0, 0, 0))
    assert up.value("kafka_network_RequestMetrics_TotalTimeMs_count", request="CreateTopics") == 2
    assert up.value("kafka_network_RequestMetrics_TotalTimeMs_count", request="BrokerRegistration") >= 1
    assert up.value("kafka_network_RequestMetrics_TotalTimeMs_count", request="BrokerHeartbeat") >= 1
    assert up.value("kafka_log_LogFlushStats_LogFlushRateAndTimeMs_count", directory="metadata") > 0
    assert up.value("metaquorum_raft_commit_ms_count") > first.value("metaquorum_raft_commit_ms_count")
    assert up.value(RAFT + "commit_latency_max") >= up.value(RAFT + "commit_latency_avg") > 0
    assert up.value("metaquorum_raft_appended_records_total") == up.value(RAFT + "log_end_offset")
    assert up.value(RAFT + "append_records_rate") > 0 and 0 < up.value(RAFT + "poll_idle_ratio_avg") <= 1
    assert up.value(KAFKA + "LastCommittedRecordOffset") <= up.value(KAFKA + "LastAppliedRecordOffset")
    assert up.value(KAFKA + "LastCommittedRecordOffset") == up.value(RAFT + "high_watermark") - 1
    assert up.value(KAFKA + "LastAppliedRecordLagMs") == 0
    assert up.value(KAFKA + "LastAppliedRecordTimestamp") > 1_700_000_000_000
    assert up.value(KAFKA + "EventQueueOperationsStartedCount") > first.value(
        KAFKA + "EventQueueOperationsStartedCount"
    )
    queue = "kafka_controller_ControllerEventManager_EventQueueTimeMs_count"
    assert up.value(queue) == up.value(queue.replace("TimeMs", "ProcessingTimeMs")) > 0


async def test_a_brokers_own_figures(site: Site) -> None:
    port = free_port()
    async with running_controller(site.controller_file()) as controller:
        async with running_broker(site.broker_file(listener(port))) as process:
            await health_is(site.broker_port, SERVING)
            page = await scrape(port)
            epoch = process.node.status(now_ms=0).broker_epoch
            end = controller.node.raft.log_end_offset
    assert page.value(RAFT + "current_state", state="observer") == 1
    assert page.value(RAFT + "current_leader") == 1 and page.value(RAFT + "current_vote") == -1
    assert page.value("kafka_server_KafkaServer_BrokerState") == 3
    assert page.value("metaquorum_broker_fenced") == 0
    assert page.value("metaquorum_broker_epoch") == epoch
    assert 0 < page.value("metaquorum_broker_lease_left_ms") <= 9_000
    assert 0 < page.value(OWN + "last_applied_record_offset") < end
    assert page.value(OWN + "last_applied_record_timestamp") > 1_700_000_000_000
    assert 0 <= page.value(OWN + "last_applied_record_lag_ms") < 120_000
    assert page.value("metaquorum_raft_fetched_records_total") == page.value(RAFT + "log_end_offset") > 0
    assert math.isnan(page.value(RAFT + "commit_latency_avg"))
    assert page.value("kafka_server_MetadataLoader_HandleLoadSnapshotCount") == 0


@pytest.mark.parametrize("pinned", [True, False], ids=["pinned", "unpinned"])
async def test_three_controllers_and_an_election(tmp_path: Path, pinned: bool) -> None:
    ports, quorum, pages = ([free_port() for _ in range(3)] for _ in range(3))
    pins = [f":{uuid_to_text(random_uuid(random.Random(at + 1)))}" if pinned else "" for at in range(3)]
    voters = ",".join(f"{at + 1}@127.0.0.1:{port}{pins[at]}" for at, port in enumerate(quorum))
    async with contextlib.AsyncExitStack() as stack:
        for at, port in enumerate(ports):
            site = Site(root=tmp_path / str(at), controller_port=port, broker_port=0, quorum_port=quorum[at])
            formatted(site.root / "controller", at + 1)
            # Nobody is to stand for election because a busy machine kept a fetch waiting.
            patient = {"controller.quorum.fetch.timeout.ms": "30000", **listener(pages[at])}
            more = {"node.id": str(at + 1), "controller.quorum.voters": voters, **patient}
            await stack.enter_async_context(running_controller(site.controller_file(more)))

        async def all_know(seen: list[float]) -> list[Scrape]:
            """The three pages, asked for again until they are of one moment in which nothing is under way and
            each has seen one more election: of two that follow fast, a node may have seen the second only."""
            while True:
                found = [await scrape(port) for port in pages]
                counts = [page.value(KAFKA + "NewActiveControllersCount") for page in found]
                active = sum(page.value(KAFKA + "ActiveControllerCount") for page in found)
                leaders = {page.value(RAFT + "current_leader") for page in found}
                fetched = sum(page.value("metaquorum_raft_fetched_records_total") > 0 for page in found)
                more = all(map(operator.gt, counts, seen))
                if more and active == 1 and len(leaders) == 1 and fetched >= 2:
                    return found
                await asyncio.sleep(0.05)

        before = await all_know([0, 0, 0])
        old = before[0].value(RAFT + "current_leader")
        seen = [page.value(KAFKA + "NewActiveControllersCount") for page in before]
        target = 1 if old != 1 else 2
        async with AdminClient([("127.0.0.1", port) for port in ports], timeout_ms=60_000) as client:
            after = before
            # On a busy machine the target's election may time out, and another one wins the next.
            while after[0].value(RAFT + "current_leader") != target:
                await client.transfer_leadership(target)
                after = await all_know(seen)
    assert {page.value(RAFT + "current_leader") for page in after} == {target}
    states = [page.value(RAFT + "current_state", state="leader") for page in after]
    assert states == [float(at + 1 == target) for at in range(3)]
    assert after[target - 1].value("metaquorum_raft_election_ms_count") >= 1
    followers = [page for at, page in enumerate(after) if at + 1 != target]
    assert all(page.value(RAFT + "current_state", state="follower") == 1 for page in followers)
    assert any(page.value("metaquorum_raft_fetched_records_total") > 0 for page in followers)


async def test_a_snapshot_on_disk_is_counted_at_the_start(site: Site) -> None:
    port = free_port()
    file = site.controller_file({**listener(port), "metadata.log.max.record.bytes.between.snapshots": "1"})
    size = "kafka_server_SnapshotEmitter_LatestSnapshotGeneratedBytes"
    loads = "kafka_server_MetadataLoader_HandleLoadSnapshotCount"
    async with running_controller(file):
        written = await until(port, lambda page: page.value(size) > 0)
    assert written.value(loads) == 0
    async with running_controller(site.controller_file(listener(port))):
        again = await scrape(port)
    assert again.value(loads) == 1 and again.value(size) > 0
    assert again.value("kafka_server_SnapshotEmitter_LatestSnapshotGeneratedAgeMs") >= 0


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("9404", "metrics.listener has '9404': write http://host:port, for example http://127.0.0.1:9404"),
        ("ftp://127.0.0.1:9404", "metrics.listener has 'ftp://127.0.0.1:9404': write http://host:port"),
        ("https://127.0.0.1:9404", "a listener is SSL, but ssl.keystore.location is missing"),
        ("http://127.0.0.1:0", "a port is a number from 1 to 65535"),
        ("http://127.0.0.1:70000", "a port is a number from 1 to 65535"),
    ],
)
def test_a_listener_that_is_none_is_one_line(site: Site, value: str, text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_config(site.controller_file({"metrics.listener": value}), "controller")
    assert text in str(refused.value) and "\n" not in str(refused.value)


def test_a_listener_of_its_own_port_and_without_a_host(site: Site) -> None:
    with pytest.raises(
        ConfigError, match="has the address of the listener GRPC_CONTROLLER: give it a port of its own"
    ):
        load_config(site.controller_file(listener(site.controller_port)), "controller")
    config = load_config(site.controller_file({"metrics.listener": "http://:9404"}), "controller")
    assert config.metrics_listener is not None
    assert (config.metrics_listener.host, config.metrics_listener.port) == ("127.0.0.1", 9404)
    assert load_config(site.controller_file(), "controller").metrics_listener is None
