"""What the nodes' metrics pages say about partition data, for the live view of a local cluster.

Owns the requests (in parallel, each with a timeout) and rates from counters. Does not draw (`watch`) and
does not report a page that fails: the view shows by itself which nodes do not run.
"""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.client import HTTPException

import msgspec

from metaquorum.cli.layout import LocalNode

PAGE_WAIT_S = 0.5
PAGE_MAX_BYTES = 8 * 1024 * 1024
AT_ONCE = 16
_MANAGER = "kafka_server_ReplicaManager_"
_TRAFFIC = "kafka_server_BrokerTopicMetrics_"
_CONTROLLER = "kafka_controller_KafkaController_"

Page = Mapping[str, float]


class BrokerRates(msgspec.Struct, frozen=True, kw_only=True):
    """One broker's partition data. Rates are those of clients, without replication, in bytes per second.
    None: one page alone has no rate."""

    leaders: int
    replicas: int
    under_replicated: int
    offline_replicas: int
    offline_directories: int
    bytes_in_per_s: float | None
    bytes_out_per_s: float | None


class ClusterFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster's partitions, as the active controller counts them."""

    topics: int
    partitions: int
    leaderless: int


@dataclass(slots=True)
class Figures:
    """The latest figures. Brokers without figures are absent."""

    cluster: ClusterFigures | None = None
    brokers: dict[int, BrokerRates] = field(default_factory=dict)


class FigureReader:
    """Reads the pages of `nodes` each time. Keeps the last counters to compute rates."""

    def __init__(
        self,
        nodes: Sequence[LocalNode],
        *,
        ask: Callable[[str], Page | None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._urls = {node.node_id: (node, url) for node in nodes if (url := node.metrics_url)}
        self._ask = ask or _page
        self._clock = clock
        self._before: dict[int, tuple[float, Page]] = {}

    def read(self) -> Figures:
        """Takes at most PAGE_WAIT_S per AT_ONCE nodes."""
        with ThreadPoolExecutor(max(1, min(AT_ONCE, len(self._urls)))) as pool:
            asked = pool.map(self._ask, [url for _, url in self._urls.values()])
            pages = dict(zip(self._urls, asked, strict=True))
        now, found = self._clock(), Figures()
        for node_id, page in pages.items():
            if page is None:
                self._before.pop(node_id, None)
                continue
            node, _ = self._urls[node_id]
            if node.serves:
                found.brokers[node_id] = self._broker(node_id, page, now)
                self._before[node_id] = now, page
            if node.controls and page.get(_CONTROLLER + "ActiveControllerCount") == 1:
                found.cluster = ClusterFigures(
                    topics=_count(page, _CONTROLLER + "GlobalTopicCount"),
                    partitions=_count(page, _CONTROLLER + "GlobalPartitionCount"),
                    leaderless=_count(page, _CONTROLLER + "OfflinePartitionsCount"),
                )
        return found

    def _broker(self, node_id: int, page: Page, now: float) -> BrokerRates:
        return BrokerRates(
            leaders=_count(page, _MANAGER + "LeaderCount"),
            replicas=_count(page, _MANAGER + "PartitionCount"),
            under_replicated=_count(page, _MANAGER + "UnderReplicatedPartitions"),
            offline_replicas=_count(page, _MANAGER + "OfflineReplicaCount"),
            offline_directories=_count(page, "kafka_log_LogManager_OfflineLogDirectoryCount"),
            bytes_in_per_s=self._rate(node_id, page, now, _TRAFFIC + "BytesInPerSec_total"),
            bytes_out_per_s=self._rate(node_id, page, now, _TRAFFIC + "BytesOutPerSec_total"),
        )

    def _rate(self, node_id: int, page: Page, now: float, name: str) -> float | None:
        """None: there is no earlier count, or the process restarted since."""
        at, before = self._before.get(node_id, (now, {}))
        grown = page.get(name, 0.0) - before.get(name, 0.0)
        return grown / (now - at) if now > at and grown >= 0 else None


def _count(page: Page, name: str) -> int:
    return int(page.get(name, 0))


def _page(url: str) -> Page | None:
    try:
        with urllib.request.urlopen(url, timeout=PAGE_WAIT_S) as answer:
            return parse_page(answer.read(PAGE_MAX_BYTES).decode(errors="replace"))
    except (OSError, HTTPException):
        return None


def parse_page(text: str) -> dict[str, float]:
    """The values without labels of a page in Prometheus' text format. Ignores invalid lines."""
    found = {}
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if name and "{" not in name and name != "#":
            try:
                found[name] = float(value)
            except ValueError:
                continue
    return found
