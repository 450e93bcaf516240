"""The live view of a local cluster: what it makes of metrics pages, and how it looks."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from metaquorum.cli.local.watch import (
    BrokerRates,
    ClusterFigures,
    FigureReader,
    Figures,
    Page,
    View,
    parse_page,
    render,
    status_line,
)
from metaquorum.metadata.image.types import BrokerRegistration
from metaquorum.metadata.inspect.timeline.event import TimelineEvent
from metaquorum.metadata.requests.common import DescribeQuorumResponse
from metaquorum.node.local_nodes import LocalNode, free_ports

NODES = [
    LocalNode(role="controller", node_id=3000, port=1, directory_id="", metrics_port=11),
    LocalNode(role="broker", node_id=0, port=2, directory_id="", metrics_port=12),
    LocalNode(role="broker", node_id=1, port=3, directory_id="", metrics_port=13),
    LocalNode(role="broker", node_id=2, port=4, directory_id="", metrics_port=0),
]
CONTROLLER = parse_page(
    "# HELP kafka_controller_KafkaController_ActiveControllerCount 1 on the active one\n"
    "kafka_controller_KafkaController_ActiveControllerCount 1.0\n"
    "kafka_controller_KafkaController_GlobalTopicCount 2.0\n"
    "kafka_controller_KafkaController_GlobalPartitionCount 9.0\n"
    "kafka_controller_KafkaController_OfflinePartitionsCount 1.0\n"
)


def broker_page(bytes_in: float, bytes_out: float) -> Page:
    return parse_page(
        'kafka_server_ReplicaManager_LeaderCount{wrong="yes"} 99.0\n'
        "kafka_server_ReplicaManager_LeaderCount 4.0\n"
        "kafka_server_ReplicaManager_PartitionCount 12.0\n"
        "kafka_server_ReplicaManager_UnderReplicatedPartitions 3.0\n"
        "kafka_server_ReplicaManager_OfflineReplicaCount 2.0\n"
        "kafka_log_LogManager_OfflineLogDirectoryCount 1.0\n"
        f"kafka_server_BrokerTopicMetrics_BytesInPerSec_total {bytes_in}\n"
        f"kafka_server_BrokerTopicMetrics_BytesOutPerSec_total {bytes_out:e}\n"
        "no figure\n\n"
    )


def test_rates_come_from_two_pages_and_begin_anew_with_a_process() -> None:
    pages: dict[str, Page | None] = {NODES[0].metrics_url or "": CONTROLLER}
    now = [10.0]
    reader = FigureReader(NODES, ask=pages.get, clock=lambda: now[0])
    url = NODES[1].metrics_url or ""
    seen = []
    for at, page in (
        (10.0, broker_page(1e6, 5e6)),
        (12.0, broker_page(5e6, 5e6)),
        (13.0, broker_page(1e3, 0)),
        (14.0, None),
        (15.0, broker_page(9e6, 9e6)),
    ):
        now[0], pages[url] = at, page
        found = reader.read()
        assert found.cluster == ClusterFigures(topics=2, partitions=9, leaderless=1)
        assert 1 not in found.brokers and 2 not in found.brokers
        one = found.brokers.get(0)
        seen.append(one and (one.bytes_in_per_s, one.bytes_out_per_s))
    assert seen == [(None, None), (2e6, 0.0), (None, None), None, (None, None)]


@contextmanager
def serving(answer: bytes, status: int = 200) -> Iterator[int]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize(("status", "there"), [(200, True), (503, False)])
def test_pages_are_asked_over_http_and_a_silent_one_is_no_figures(status: int, there: bool) -> None:
    with serving(b"kafka_server_ReplicaManager_LeaderCount 7.0\n", status) as port:
        nodes = [
            LocalNode(role="broker", node_id=0, port=1, directory_id="", metrics_port=port),
            LocalNode(role="broker", node_id=1, port=2, directory_id="", metrics_port=free_ports(1)[0]),
        ]
        found = FigureReader(nodes).read().brokers
    assert {node: each.leaders for node, each in found.items()} == ({0: 7} if there else {})


def view() -> View:
    bad = BrokerRates(
        leaders=4,
        replicas=12,
        under_replicated=3,
        offline_replicas=2,
        offline_directories=1,
        bytes_in_per_s=1_234_000.0,
        bytes_out_per_s=None,
    )
    idle = BrokerRates(
        leaders=1234,
        replicas=98765,
        under_replicated=0,
        offline_replicas=0,
        offline_directories=0,
        bytes_in_per_s=0.0,
        bytes_out_per_s=345_600_000.0,
    )
    quorum = DescribeQuorumResponse(
        cluster_id="c", leader_id=3000, leader_epoch=2, high_watermark=77, voters=(), observers=()
    )
    figures = Figures(ClusterFigures(topics=2, partitions=9, leaderless=1), {0: bad, 1: idle})
    return View(quorum=quorum, figures=figures)


def shown(what: View, width: int, height: int) -> list[str]:
    layout = SimpleNamespace(nodes=NODES, brokers=NODES[1:], cluster_id="c" * 22)
    console = Console(width=width, height=height, force_terminal=False)
    with console.capture() as capture:
        console.print(render(SimpleNamespace(layout=layout), what, console.size))  # type: ignore[arg-type]
    return capture.get().splitlines()


@pytest.mark.parametrize("width", [80, 200])
def test_the_table_of_partition_data_has_room_on_any_terminal(width: int) -> None:
    text = shown(view(), width, 50)
    assert "topics 2   partitions 9   without leader 1" in text[1]
    assert max(map(len, text)) <= width
    cells = {
        line.split("│")[1].strip(): [each.strip() for each in line.split("│")[2:-1]]
        for line in text
        if "│ broker-" in line
    }
    assert cells["broker-0"] == ["4", "12", "3", "2", "1", "1.23", "-"]
    assert cells["broker-1"] == ["1234", "98765", "0", "0", "0", "0", "346"]
    assert cells["broker-2"] == ["-"] * 7


def test_a_low_terminal_shows_the_newest_events() -> None:
    what = view()
    what.events = deque(
        TimelineEvent(offset=number, epoch=1, time_ms=number, kind="thing", entity="e", text="x" * 300)
        for number in range(12)
    )
    for height, first in ((50, 0), (25, 9), (5, 10)):
        text = shown(what, 80, height)
        told = [line for line in text if "xxxx" in line]
        assert len(told) == 12 - first, text
        assert "00:00:00 thing: xxxx" in told[0]
        assert len(text) < height or height == 5


def test_a_wide_terminal_shows_events_as_the_timeline_does() -> None:
    what = view()
    what.events.append(TimelineEvent(offset=7, epoch=1, time_ms=0, kind="thing", entity="e", text="x"))
    assert any("7  1970-01-01T00:00:00.000Z  epoch 1" in line for line in shown(what, 200, 50))


def test_troubles_are_in_the_line_of_plain_output_and_only_they() -> None:
    what = view()
    assert status_line(what) == (
        "leader 3000, epoch 2; brokers: none; partitions without leader: 1; under-replicated partitions: 3;"
        " broker 0: log directories offline: 1"
    )
    what.figures = Figures(ClusterFigures(topics=2, partitions=9, leaderless=0), {})
    assert status_line(what) == "leader 3000, epoch 2; brokers: none"


def test_without_a_quorum_nobody_leads_and_who_is_killed_is_down() -> None:
    what = view()
    what.pids = {node.name: None if node.node_id in (3000, 1) else 7 for node in NODES}
    what.brokers = [
        BrokerRegistration(broker_id=each, epoch=1, incarnation_id=bytes(16), fenced=False) for each in (0, 1)
    ]
    assert status_line(what).startswith("leader 3000, epoch 2; brokers: 0 running, 1 running; down: ")
    what.problem = "no node at 127.0.0.1:1 answered"
    assert status_line(what) == "no leader; down: controller-3000, broker-1; no node at 127.0.0.1:1 answered"
    text = shown(what, 120, 50)
    assert "   no leader" in text[0]
    assert not any("leader 3000" in line or "│ leader " in line for line in text)
    states = {
        line.split("│")[1].strip(): (line.split("│")[2].strip(), line.split("│")[4].strip())
        for line in text
        if line.count("│") == 7
    }
    assert states == {
        "controller-3000": ("-", "down"),
        "broker-0": ("7", "running"),
        "broker-1": ("-", "down"),
        "broker-2": ("7", "not registered"),
    }
