"""The live view of a local cluster: quorum, nodes, brokers' partition data and the latest events of the log.

A redrawn table on a terminal, elsewhere one line per change.
"""

from __future__ import annotations

import contextlib
import shlex
import signal
import time
import urllib.request
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.client import HTTPException
from queue import Empty, SimpleQueue
from types import FrameType

import click
import msgspec
from rich.console import ConsoleDimensions, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from metaquorum.cli.errors import Failure
from metaquorum.cli.local.cluster import LocalCluster
from metaquorum.cli.log.input import source as log_source
from metaquorum.cli.log.input.source import ReadBatch
from metaquorum.cli.log.timeline import event_text
from metaquorum.cli.text.quorum import broker_state
from metaquorum.lines import one_line
from metaquorum.metadata.errors import ApiError
from metaquorum.metadata.image.types import BrokerRegistration
from metaquorum.metadata.inspect.causes.rule import DETAIL
from metaquorum.metadata.inspect.timeline.event import TimelineEvent
from metaquorum.metadata.inspect.timeline.timeline import Timeline
from metaquorum.metadata.inspect.walk.states import earliest, state_at
from metaquorum.metadata.requests.common import DescribeQuorumResponse, ReplicaStatus
from metaquorum.node.local_nodes import LocalNode
from metaquorum.platforms import ENDING_SIGNALS
from metaquorum.storage.errors import StorageError
from metaquorum.storage.log.reader import LogReader

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
        now, figures = self._clock(), Figures()
        for node_id, page in pages.items():
            if page is None:
                self._before.pop(node_id, None)
                continue
            node, _ = self._urls[node_id]
            if node.serves:
                figures.brokers[node_id] = self._broker(node_id, page, now)
                self._before[node_id] = now, page
            if node.controls and page.get(_CONTROLLER + "ActiveControllerCount") == 1:
                figures.cluster = ClusterFigures(
                    topics=_count(page, _CONTROLLER + "GlobalTopicCount"),
                    partitions=_count(page, _CONTROLLER + "GlobalPartitionCount"),
                    leaderless=_count(page, _CONTROLLER + "OfflinePartitionsCount"),
                )
        return figures

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
    values = {}
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if name and "{" not in name and name != "#":
            try:
                values[name] = float(value)
            except ValueError:
                continue
    return values


INTERVAL_S = 0.5
EVENTS_SHOWN = 12
EVENTS_MIN = 2
_WIDE = 130
"""From this many columns on, events look as in `log timeline`."""
_LINES_AROUND = 15
"""Lines of the title, the tables' headers and frames, and the last line, which stays free."""
_COLOURS = {"running": "green", "fenced": "red", "controlled shutdown": "yellow", "not registered": "dim"}


@dataclass(slots=True)
class View:
    """The latest answers. `problem`: why the quorum did not answer; then the rest is older."""

    quorum: DescribeQuorumResponse | None = None
    brokers: list[BrokerRegistration] = field(default_factory=list)
    pids: dict[str, int | None] = field(default_factory=dict)
    figures: Figures = field(default_factory=Figures)
    events: deque[TimelineEvent] = field(default_factory=lambda: deque(maxlen=EVENTS_SHOWN))
    problem: str | None = None


class EventTail:
    """New events of the cluster's log, read from the files of any controller that has them."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._paths = [str(cluster.layout.metadata_log(node)) for node in cluster.layout.controllers]
        self._reader: LogReader | None = None
        self._timeline = Timeline()
        self._high_watermark = 0
        self._waiting: deque[TimelineEvent] = deque()

    def poll(self, high_watermark: int) -> list[TimelineEvent]:
        """New events below the high watermark. Records above it may still be lost."""
        try:
            if self._reader is None:
                self._begin(self._paths[0])
            for found in self._reader.poll() if self._reader is not None else ():
                for item in log_source.decode_item(found):
                    if isinstance(item, ReadBatch):
                        header = item.batch.header
                        records = [(decoded.offset, decoded.record) for decoded in item.records]
                        self._waiting += self._timeline.batch(
                            header.leader_epoch, header.max_timestamp_ms, records
                        )
        except StorageError:
            # Missing, or truncated after a lost election: start over with the next controller's files.
            self._paths.append(self._paths.pop(0))
            self._timeline, self._reader = Timeline(), None
            self._waiting.clear()
            return []
        ready = []
        while self._waiting and self._waiting[0].offset < high_watermark:
            event = self._waiting.popleft()
            if event.offset >= self._high_watermark and event.severity != DETAIL:
                ready.append(event)
        self._high_watermark = max(self._high_watermark, high_watermark)
        return ready

    def _begin(self, path: str) -> None:
        """Starts at the log's start or, in a trimmed log, at its oldest snapshot."""
        log = log_source.open_path(path, progress=False)
        image = None
        if log.start_offset:
            image = state_at(log, earliest(log), past_corruption=True).image
        self._timeline = Timeline(image)
        self._reader = log_source.open_reader(path, None if image is None else image.provenance.offset)


class EndSignal:
    """Whether a signal has arrived. A handler may interrupt `wait` anywhere, which `SimpleQueue.put` allows.
    `threading.Event.set` could wait forever for the lock that the interrupted `wait` holds."""

    def __init__(self) -> None:
        self._arrived: SimpleQueue[None] = SimpleQueue()

    def handle(self, number: int, frame: FrameType | None) -> None:
        self._arrived.put(None)

    def wait(self, timeout_s: float) -> bool:
        """Returns whether one has arrived, after at most `timeout_s`."""
        try:
            self._arrived.get(timeout=timeout_s)
        except Empty:
            return False
        return True


def watch(cluster: LocalCluster, *, live: bool) -> None:
    """Shows the cluster until Ctrl-C or SIGTERM, then stops what `cluster` started, and nothing
    else. Raises Failure if it had to kill a process."""
    ended = EndSignal()
    ends = (signal.SIGINT, *ENDING_SIGNALS)
    previous = {number: signal.signal(number, ended.handle) for number in ends}
    try:
        with contextlib.suppress(OSError):  # the terminal may be closed
            (_watch_live if live else _watch_lines)(cluster, ended)
            click.echo(_farewell(cluster))
        outcomes = cluster.stop_nodes(cluster.started)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    with contextlib.suppress(OSError):
        for name, outcome in outcomes.items():
            click.echo(f"{name}: {outcome}")
    if "killed" in outcomes.values():
        raise Failure("a process did not stop and was killed; see its process.log")


def _farewell(cluster: LocalCluster) -> str:
    mine = {node.name for node in cluster.started}
    others = [
        node.name for node in cluster.layout.nodes if node.name not in mine and cluster.processes.pid(node)
    ]
    stopping = "stopping: brokers, then standby controllers, then the active controller"
    if not others:
        return stopping
    left = (
        f"still running, because this command did not start them: {', '.join(others)}; stop them with: "
        f"metaquorum local down -d {shlex.quote(str(cluster.layout.directory))}"
    )
    return f"{left}\n{stopping}" if mine else left


def refresh(cluster: LocalCluster, view: View, tail: EventTail, figures: FigureReader) -> list[TimelineEvent]:
    """Asks the cluster again. Returns the events since the last time."""
    view.figures = figures.read()
    try:
        view.quorum = cluster.client.quorum()
        view.brokers = cluster.client.brokers()
        view.problem = None
    except (ApiError, Failure) as error:
        view.problem = one_line(error)
    view.pids = {node.name: cluster.processes.pid(node) for node in cluster.layout.nodes}
    fresh = tail.poll(view.quorum.high_watermark if view.quorum else 0)
    view.events.extend(fresh)
    return fresh


def _watch_live(cluster: LocalCluster, ended: EndSignal) -> None:
    view, tail, figures = View(), EventTail(cluster), FigureReader(cluster.layout.nodes)
    refresh(cluster, view, tail, figures)
    with Live(refresh_per_second=4, screen=False) as shown:
        shown.update(render(cluster, view, shown.console.size))
        while not ended.wait(INTERVAL_S):
            refresh(cluster, view, tail, figures)
            shown.update(render(cluster, view, shown.console.size))


def _watch_lines(cluster: LocalCluster, ended: EndSignal) -> None:
    view, tail, figures = View(), EventTail(cluster), FigureReader(cluster.layout.nodes)
    changed = _on_change(click.echo)
    while True:
        fresh = refresh(cluster, view, tail, figures)
        changed(status_line(view))
        for event in fresh:
            click.echo(event_text(event))
        if ended.wait(INTERVAL_S):
            return


def _on_change(show: Callable[[str], None]) -> Callable[[str], None]:
    last: list[str] = []

    def changed(line: str) -> None:
        if last != [line]:
            show(line)
            last[:] = [line]

    return changed


def status_line(view: View) -> str:
    """The state in one line, without values that change all the time."""
    down = [name for name, pid in view.pids.items() if pid is None]
    down_text = [f"down: {', '.join(down)}"] if down else []
    if view.problem is not None:
        return "; ".join(["no leader", *down_text, view.problem])
    if view.quorum is None:
        return "; ".join(["no leader yet", *down_text])
    brokers = ", ".join(f"{broker.broker_id} {broker_state(broker)}" for broker in view.brokers)
    line = f"leader {view.quorum.leader_id}, epoch {view.quorum.leader_epoch}; brokers: {brokers or 'none'}"
    return "; ".join([line, *down_text, *map(str, view.quorum.losses), *_troubles(view.figures)])


def _troubles(figures: Figures) -> list[str]:
    """Problems of the partition data that need an operator."""
    troubles = []
    if figures.cluster is not None and figures.cluster.leaderless:
        troubles.append(f"partitions without leader: {figures.cluster.leaderless}")
    under = sum(each.under_replicated for each in figures.brokers.values())
    if under:
        troubles.append(f"under-replicated partitions: {under}")
    troubles += [
        f"broker {broker_id}: log directories offline: {each.offline_directories}"
        for broker_id, each in figures.brokers.items()
        if each.offline_directories
    ]
    return troubles


def render(cluster: LocalCluster, view: View, size: ConsoleDimensions) -> RenderableType:
    """The whole screen, with as many of the newest events as fit."""
    title = Text(f"cluster {cluster.layout.cluster_id}")
    if view.problem is not None or view.quorum is None:
        title.append("   no leader", style="bold red")
    else:
        title.append(
            f"   leader {view.quorum.leader_id}   epoch {view.quorum.leader_epoch}"
            f"   high watermark {view.quorum.high_watermark}",
            style="bold",
        )
        for loss in view.quorum.losses:
            title.append(f"\n{loss}", style="bold red")
    partitions = view.figures.cluster
    if partitions is not None:
        title.append(f"\ntopics {partitions.topics}   partitions {partitions.partitions}")
        title.append(f"   without leader {partitions.leaderless}", _bad(partitions.leaderless, "red"))
    if view.problem is not None:
        title.append(f"\nno answer: {view.problem}", style="red")
    room = size.height - len(cluster.layout.nodes) - len(cluster.layout.brokers) - _LINES_AROUND
    newest = list(view.events)[-max(EVENTS_MIN, room) :]
    text_of = event_text if size.width >= _WIDE else _short_event
    lines = "\n".join(text_of(event) for event in newest)
    events = Text(lines or "nothing yet", no_wrap=True, overflow="ellipsis")
    panel = Panel(events, title="last events", title_align="left")
    return Group(title, _nodes_table(cluster, view), _data_table(cluster, view), panel)


def _short_event(event: TimelineEvent) -> str:
    """`13:18:27 broker unfenced: broker 2 (was fenced)`, for terminals of 80 columns."""
    at = datetime.fromtimestamp(event.time_ms / 1000, UTC)
    return f"{at:%H:%M:%S} {event.kind}: {event.text}"


def _nodes_table(cluster: LocalCluster, view: View) -> Table:
    table = Table(expand=False)
    for column in ("node", "pid", "role", "state", "log end", "lag"):
        table.add_column(column, justify="right" if column in ("pid", "log end", "lag") else "left")
    replicas: dict[int, ReplicaStatus] = {}
    leader_id = None
    if view.quorum is not None and view.problem is None:
        replicas = {one.node_id: one for one in (*view.quorum.voters, *view.quorum.observers)}
        leader_id = view.quorum.leader_id
    registered = {broker.broker_id: broker for broker in view.brokers}
    for node in cluster.layout.nodes:
        pid = view.pids.get(node.name)
        replica = replicas.get(node.node_id)
        role, state = "observer", "running"
        if node.controls:
            role = "leader" if pid and node.node_id == leader_id else "voter"
        if node.serves:
            broker = registered.get(node.node_id)
            state = broker_state(broker) if broker else "not registered"
        table.add_row(
            node.name,
            str(pid) if pid else "-",
            Text(role, style="bold" if role == "leader" else ""),
            Text(state, style=_COLOURS.get(state, "")) if pid else _down(state),
            str(replica.log_end_offset) if replica and pid else "-",
            str(replica.lag) if replica and pid else "-",
        )
    return table


def _down(state: str) -> Text:
    """The state of a node without a process. Its registration may not show yet that it is fenced."""
    return Text("down, fenced" if state == "fenced" else "down", style="red")


_DATA = (
    "broker",
    "leaders",
    "replicas",
    "under\nrepl.",
    "replicas\noffline",
    "dirs\noffline",
    "MB/s\nin",
    "MB/s\nout",
)


def _data_table(cluster: LocalCluster, view: View) -> Table:
    """Every broker's part of the partitions. A dash: its metrics page does not say."""
    table = Table(expand=False)
    for column in _DATA:
        table.add_column(column, justify="left" if column == "broker" else "right")
    for node in cluster.layout.brokers:
        found = view.figures.brokers.get(node.node_id)
        table.add_row(node.name, *(_data_cells(found) if found else ["-"] * (len(_DATA) - 1)))
    return table


def _data_cells(rates: BrokerRates) -> list[str | Text]:
    return [
        str(rates.leaders),
        str(rates.replicas),
        Text(str(rates.under_replicated), _bad(rates.under_replicated, "yellow")),
        Text(str(rates.offline_replicas), _bad(rates.offline_replicas, "red")),
        Text(str(rates.offline_directories), _bad(rates.offline_directories, "red")),
        _megabytes(rates.bytes_in_per_s),
        _megabytes(rates.bytes_out_per_s),
    ]


def _bad(count: int, style: str) -> str:
    return style if count else ""


def _megabytes(per_s: float | None) -> str:
    """Megabytes: `-` unknown, `0` none, otherwise at least two digits."""
    if per_s is None:
        return "-"
    megabytes = per_s / 1e6
    return "0" if not per_s else f"{megabytes:.0f}" if megabytes >= 100 else f"{max(megabytes, 0.01):.2f}"
