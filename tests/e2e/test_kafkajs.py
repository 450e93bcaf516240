"""kafkajs: every codec and acks, alone and in groups, offsets, transactions, administration; exact counts
through kill -9 of leaders, coordinators and controllers. kafkajs_driver.js is its side of each test.
"""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.group_members import Member, goes_through_everything
from tests.e2e.kafka_site import (
    QUICK,
    KafkaCluster,
    Outcome,
    assert_exact,
    confluent_produce,
    confluent_read,
    create_topics_of_load,
    kafka_site,
    kill_in_turn,
    wait_for_leaders,
)
from tests.e2e.kafkajs import DRIVER, node_environment

pytestmark = pytest.mark.e2e

PATIENCE_S = 90
MESSAGES = 300
PER_REQUEST = 100


@pytest.fixture(name="site", scope="module")
def fixture_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    node_environment()
    with kafka_site(tmp_path_factory.mktemp("kafkajs"), KafkaCluster, 3, QUICK) as site:
        yield site


def words(site: KafkaCluster, command: str, **given: Any) -> list[str]:
    return ["node", str(DRIVER), command, json.dumps({"brokers": site.bootstrap.split(","), **given})]


def driven(site: KafkaCluster, command: str, **given: Any) -> Any:
    """The response of the driver to one command."""
    done = subprocess.run(
        words(site, command, **given),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env=node_environment(),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def values(tag: str) -> list[str]:
    return [f"{tag} {number} " * 5 for number in range(MESSAGES)]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_it_writes_and_reads_every_codec(site: KafkaCluster, codec: str) -> None:
    topic = f"codec-{codec}"
    site.create_topic(topic, partitions=1)
    sent = values(codec)
    produced = driven(site, "produce", topic=topic, values=sent, codec=codec, perRequest=PER_REQUEST)
    assert produced == {"offsets": list(range(0, MESSAGES, PER_REQUEST))}
    # librdkafka's batches after its own: each client reads the other's.
    confluent_produce(site, topic, [b"rd"], **{"compression.type": codec})
    read = driven(site, "consume", topic=topic, group=topic, count=MESSAGES + 1)["messages"]
    assert read == [[offset, value] for offset, value in enumerate([*sent, "rd"])]
    found = confluent_read(site, topic, MESSAGES + 1, partitions=1)
    assert found == [value.encode() for value in [*sent, "rd"]]


@pytest.mark.parametrize("config", [{"acks": 0}, {"acks": 1}, {"idempotent": True}], ids=str)
def test_it_writes_with_every_acks(site: KafkaCluster, config: dict[str, Any]) -> None:
    topic = "-".join(map(str, *config.items()))
    site.create_topic(topic, partitions=1)
    wait_for_leaders(site, topic, 1)
    sent = values("acks")
    driven(site, "produce", topic=topic, values=sent, perRequest=PER_REQUEST, **config)
    assert confluent_read(site, topic, MESSAGES, partitions=1) == [value.encode() for value in sent]


def test_it_seeks_commits_and_finds_offsets_by_time(site: KafkaCluster) -> None:
    site.create_topic("times", partitions=1)
    began_ms = int(time.time() * 1000) - 60_000
    sent = [str(number) for number in range(10)]
    times = [began_ms + 1_000 * number for number in range(10)]
    driven(site, "produce", topic="times", values=sent, times=times, perRequest=1)
    asked = [began_ms + later_ms for later_ms in (-1, 0, 3_000, 3_001, 9_001)]
    found = driven(site, "offsets", topic="times", times=asked)
    assert found["at"] == [0, 0, 3, 4, 10]
    assert found["ends"] == [{"partition": 0, "offset": "10", "high": "10", "low": "0"}]
    read = driven(site, "consume", topic="times", group="seeks", count=3, seek=7)["messages"]
    assert read == [[7, "7"], [8, "8"], [9, "9"]]
    driven(site, "commit", topic="times", group="commits", offset=6)
    read = driven(site, "consume", topic="times", group="commits", count=4)["messages"]
    assert [offset for offset, _ in read] == [6, 7, 8, 9]


def test_it_commits_aborts_sends_offsets_and_is_fenced(site: KafkaCluster) -> None:
    site.create_topic("tx", partitions=1)
    ended = driven(site, "transactions", topic="tx", group="tx-group", id="tx-id")
    assert ended["fenced"] in ("INVALID_PRODUCER_EPOCH", "PRODUCER_FENCED")
    committed = driven(site, "consume", topic="tx", group="tx-committed", count=3)["messages"]
    assert [value for _, value in committed] == ["first", "second", "third"]
    everything = driven(site, "consume", topic="tx", group="tx-all", count=4, readUncommitted=True)[
        "messages"
    ]
    assert [value for _, value in everything] == ["first", "aborted", "second", "third"]


def test_it_administers(site: KafkaCluster) -> None:
    found = driven(site, "administer", topic="administered", group="administered")
    cluster = found.pop("cluster")
    assert cluster["clusterId"] == site.cluster.cluster_id
    assert {broker["nodeId"]: broker["port"] for broker in cluster["brokers"]} == site.ports
    assert found == {
        "created": True,
        "createdAgain": False,
        "low": "3",
        "moving": [],
        "committed": ["4"],
        "group": "Empty",
        "listed": True,
        "deleted": [0],
        "revoked": ["User:bob"],
    }


def test_its_groups(site: KafkaCluster, tmp_path: Path) -> None:
    def join(topic: str, output: Path) -> Member:
        return Member(words(site, "member", topic=topic, group=topic), output, node_environment())

    goes_through_everything(site, tmp_path, {"kafkajs": join})


def test_it_loses_and_repeats_nothing_when_nodes_are_killed(site: KafkaCluster, tmp_path: Path) -> None:
    create_topics_of_load(site, "js")
    load = Member(words(site, "load", prefix="js"), tmp_path / "load.out", node_environment())

    def counts() -> list[int]:
        found: list[int] = [0, 0, 0]
        for event in load.events():
            found = event.get("counts", found)
        return found

    try:
        kill_in_turn(site, "js-written", counts)
        load.child.send_signal(signal.SIGTERM)
        assert load.child.wait(PATIENCE_S) == 0, load.events()
        found = load.events()[-1]
    finally:
        load.kill()
    print(found.pop("errors"))
    assert_exact(site, "js", Outcome(**found))
