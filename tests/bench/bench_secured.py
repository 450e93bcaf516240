"""Logins, TLS, permissions and quotas on the data path: librdkafka against two clusters, with and without
them.

Each cluster is a controller and a broker. The ways to connect are measured in turn, every other round in
reverse order, so that other work on the machine affects all of them equally; what counts is the ratio.
Connecting is not measured, and no quota is reached.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import confluent_kafka
from click.testing import CliRunner

from metaquorum.cli.main import main
from metaquorum.node.local_nodes import free_ports
from tests.bench.figures import Figure
from tests.bench.quorum import cpu_seconds
from tests.e2e.cluster import HOST, Cluster
from tests.unit.server.certificates import certificate_files

RECORD_BYTES = 1_000
ENTRIES = 200
JAAS = "org.apache.kafka.common.security.plain.PlainLoginModule required"
READ_AGAIN = 4
"""How many times the messages of a round are fetched: one time is too short to measure."""
Measured = tuple[float, float, float, float]
"""MB per second of producing, and ms of the broker's processor per MB; the same for fetching."""
KINDS = tuple(
    (f"{way}{what}", unit)
    for way in ("produced", "fetched")
    for what, unit in (("", "MB/s"), (", the broker's CPU", "ms/MB"))
)
OPEN, RIGHTS, TLS = "no security", "SASL_PLAINTEXT, rights, quotas", "SASL_SSL, rights, quotas"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--megabytes", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=10)


def run(options: argparse.Namespace) -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="metaquorum-") as root:
        found = measured(Path(root), options)
    return [figure for at, what in enumerate(KINDS) for figure in _figures(found, at, *what)]


def _figures(found: dict[str, list[Measured]], at: int, what: str, unit: str) -> list[Figure]:
    figures = [
        Figure(name=f"{what}, {name}", value=statistics.median(each[at] for each in rounds), unit=unit)
        for name, rounds in found.items()
    ]
    for name in (RIGHTS, TLS):
        ratios = [one[at] / base[at] for one, base in zip(found[name], found[OPEN], strict=True)]
        text = f"{what}: {name}, beside none, median of pairs"
        wanted = 0.9 if name == RIGHTS and unit == "MB/s" else None
        figures.append(Figure(name=text, value=statistics.median(ratios), unit="", at_least=wanted))
    return figures


def measured(folder: Path, options: argparse.Namespace) -> dict[str, list[Measured]]:
    opened, secured = (Cluster(folder / name, controllers=1, brokers=1) for name in ("open", "secured"))
    with opened, secured:
        ways = {OPEN: opened_way(opened), **secured_ways(secured, folder)}
        found: dict[str, list[Measured]] = {name: [] for name in ways}
        pids = {name: (opened if name == OPEN else secured).brokers[0].pid for name in ways}
        for name in (OPEN, RIGHTS):
            produced(ways[name], READ_AGAIN * options.megabytes, pids[name])
        for at in range(options.rounds):
            for name in [*ways][:: -1 if at % 2 else 1]:
                given = produced(ways[name], options.megabytes, pids[name])
                taken = fetched(ways[name], READ_AGAIN * options.megabytes, pids[name])
                found[name].append((*given, *taken))
    return found


def opened_way(cluster: Cluster) -> dict[str, Any]:
    cluster.start()
    cluster.create_topic("t", partitions=1, replicas=1)
    return {"bootstrap.servers": f"{HOST}:{cluster.brokers[0].kafka_port}"}


def secured_ways(cluster: Cluster, folder: Path) -> dict[str, dict[str, Any]]:
    """A user that has its permissions from one of many entries, and whose quotas are not reached."""
    authority = certificate_files(folder, "authority", None)
    certificate_files(folder, "node", authority)
    plain, tls = free_ports(2)
    (node,) = cluster.brokers
    node.set_properties(
        {
            "listeners": f"GRPC://{node.address},PLAINTEXT://{HOST}:{node.kafka_port},"
            f"KAFKA_SASL://{HOST}:{plain},KAFKA_TLS://{HOST}:{tls}",
            "listener.security.protocol.map": "KAFKA_SASL:SASL_PLAINTEXT,KAFKA_TLS:SASL_SSL",
            "inter.broker.listener.name": "PLAINTEXT",
            "sasl.enabled.mechanisms": "PLAIN",
            **{
                f"listener.name.{name}.plain.sasl.jaas.config": f'{JAAS} user_alice="a" user_root="r";'
                for name in ("kafka_sasl", "kafka_tls")
            },
            "ssl.keystore.location": str(folder / "node.pem"),
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:root;User:ANONYMOUS",
        }
    )
    cluster.start()
    cluster.create_topic("t", partitions=1, replicas=1)
    (folder / "root.properties").write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
        f'sasl.jaas.config={JAAS} username="root" password="r";\n'
    )
    where = ("--bootstrap", f"{HOST}:{plain}", "--command-config", str(folder / "root.properties"))
    users = ["User:alice", *(f"User:u{at}" for at in range(ENTRIES))]
    right = ("--resource-type", "topic", "--resource-name", "t", "--operation")
    for words in (
        ("acls", "add", *users, *right, "read"),
        ("acls", "add", *users, *right, "write"),
        ("acls", "add", *users, "--resource-type", "group", "--resource-name", "g", "--operation", "read"),
        *(
            ("quotas", "alter", "--user", "alice", "--set", f"{name}={bound}")
            for name, bound in (
                ("producer_byte_rate", 10**10),
                ("consumer_byte_rate", 10**10),
                ("request_percentage", 10**6),
            )
        ),
    ):
        done = CliRunner().invoke(main, [*words, *where], catch_exceptions=False)
        assert done.exit_code == 0, done.output + done.stderr
    login = {"sasl.mechanism": "PLAIN", "sasl.username": "alice", "sasl.password": "a"}
    ca = {"ssl.ca.location": str(folder / "authority.crt")}
    return {
        RIGHTS: {**login, "bootstrap.servers": f"{HOST}:{plain}", "security.protocol": "SASL_PLAINTEXT"},
        TLS: {**login, **ca, "bootstrap.servers": f"{HOST}:{tls}", "security.protocol": "SASL_SSL"},
    }


def produced(config: dict[str, Any], megabytes: int, broker: int) -> tuple[float, float]:
    """MB per second and ms of the processor per MB. `broker`: its process id."""
    count = megabytes * 1_000_000 // RECORD_BYTES
    failed: list[confluent_kafka.KafkaError] = []
    throttled: list[confluent_kafka.ThrottleEvent] = []
    producer = confluent_kafka.Producer(
        {
            **config,
            "throttle_cb": throttled.append,
            "linger.ms": 5,
            "batch.size": 262_144,
            "queue.buffering.max.messages": count + 1,
            "queue.buffering.max.kbytes": 2 * megabytes * 1_000,
        }
    )
    producer.list_topics("t", timeout=60)  # it is connected
    value = b"x" * RECORD_BYTES
    begun, cpu_s = time.perf_counter(), cpu_seconds(broker)
    for _ in range(count):
        producer.produce("t", value, on_delivery=lambda error, _: error and failed.append(error))
    assert producer.flush(300) == 0 and not failed, failed[:1]
    took_s, cpu_s = time.perf_counter() - begun, cpu_seconds(broker) - cpu_s
    assert not throttled, throttled[:1]
    return megabytes / took_s, 1_000 * cpu_s / megabytes


def fetched(config: dict[str, Any], megabytes: int, broker: int) -> tuple[float, float]:
    """The same for the newest records, from the first one that arrives."""
    count = megabytes * 1_000_000 // RECORD_BYTES
    throttled: list[confluent_kafka.ThrottleEvent] = []
    consumer = confluent_kafka.Consumer(
        {**config, "throttle_cb": throttled.append, "group.id": "g", "fetch.min.bytes": 1}
    )
    _, end = consumer.get_watermark_offsets(confluent_kafka.TopicPartition("t", 0), timeout=60)
    consumer.assign([confluent_kafka.TopicPartition("t", 0, end - count)])
    left = count - len(consumer.consume(1, timeout=60))
    begun, cpu_s = time.perf_counter(), cpu_seconds(broker)
    while left > 0:
        left -= len(consumer.consume(min(left, 1_000), timeout=1))
    took_s, cpu_s = time.perf_counter() - begun, cpu_seconds(broker) - cpu_s
    consumer.close()
    assert not throttled, throttled[:1]
    return megabytes / took_s, 1_000 * cpu_s / megabytes
