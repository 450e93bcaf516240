"""The directory of a local cluster: its nodes, their ports, identities and files.

Owns `cluster.json` and the nodes' configuration files. Does not start processes (`local.processes` does) and
does not format by itself: `create` calls the formatter of `metaquorum storage format`.

    DIRECTORY/cluster.json                 the manifest: cluster id and nodes
    DIRECTORY/controller-3000/node.properties, process.json, process.log, data/
    DIRECTORY/broker-0/...                 the same, and data-1/, data-2/ for partitions
    DIRECTORY/combined-0/...               controller and broker in one process; data/ has everything

A broker's `data/` holds the metadata log only, so that any directory of partitions may fail.
"""

from __future__ import annotations

import random
import shlex
import shutil
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from metaquorum.cli.errors import Failure
from metaquorum.storage.disk.private import make_private_directory, private_file
from metaquorum.storage.uuids import random_uuid, uuid_from_text, uuid_to_text

if TYPE_CHECKING:
    from metaquorum.metadata.records.control import Voter

MANIFEST = "cluster.json"
MANIFEST_VERSION = 1
DEFAULT_DIRECTORY = "var/local"
FIRST_CONTROLLER_ID = 3000
CONTROLLER_PORT = 19190
BROKER_PORT = 19090
METRICS_ABOVE = 200
"""On the usual ports, a node's metrics port is its own port plus this."""
KAFKA_ABOVE = 400
"""On the usual ports, a broker's port for Kafka's protocol is its own port plus this."""
BROKER_LOG_DIRS = 2
HOST = "127.0.0.1"
LISTENER = "CONTROLLER"
KAFKA_LISTENER, GRPC_LISTENER = "PLAINTEXT", "GRPC"
"""A broker's listeners: for Kafka's clients and other brokers, and for the commands of this program."""
PORTS = range(12_000, 32_000)
"""The range that `free_ports` draws from."""
_given: dict[int, socket.socket] = {}
"""Ports that `free_ports` returned in this process, each with the socket that reserves it for a time."""
_KEPT_MAX = 256


class LocalNode(msgspec.Struct, frozen=True, kw_only=True):
    """One process of the cluster. `role` is controller, broker or combined; `port` is a controller's
    port or a broker's gRPC port."""

    role: str
    node_id: int
    port: int
    directory_id: str
    metrics_port: int = 0
    """0: no metrics page."""
    kafka_port: int = 0
    """A broker's port for Kafka's protocol; 0: none."""
    broker_port: int = 0
    """The gRPC port of a combined node's broker."""
    log_directory_ids: tuple[str, ...] = ()
    """Ids of a broker's partition directories, data-1 and so on. Empty: everything is in data."""

    @property
    def name(self) -> str:
        return f"{self.role}-{self.node_id}"

    @property
    def controls(self) -> bool:
        return self.role != "broker"

    @property
    def serves(self) -> bool:
        """Whether it is a broker."""
        return self.role != "controller"

    @property
    def health_ports(self) -> tuple[int, ...]:
        """The ports on which its roles report their health."""
        return (self.port, self.broker_port) if self.broker_port else (self.port,)

    @property
    def metrics_url(self) -> str | None:
        return f"http://{HOST}:{self.metrics_port}/metrics" if self.metrics_port else None


class ClusterManifest(msgspec.Struct, frozen=True, kw_only=True):
    """`dynamic_voters`: the cluster was formatted with its voters in the log (KIP-853)."""

    version: int
    cluster_id: str
    nodes: tuple[LocalNode, ...]
    dynamic_voters: bool = False


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """An opened directory of a local cluster: absolute path and manifest."""

    directory: Path
    manifest: ClusterManifest

    @property
    def cluster_id(self) -> str:
        return self.manifest.cluster_id

    @property
    def controllers(self) -> list[LocalNode]:
        return [node for node in self.manifest.nodes if node.controls]

    @property
    def brokers(self) -> list[LocalNode]:
        return [node for node in self.manifest.nodes if node.serves]

    @property
    def nodes(self) -> list[LocalNode]:
        """Every node in start order: controllers first."""
        return [*self.controllers, *(node for node in self.brokers if not node.controls)]

    @property
    def combined(self) -> int:
        """The number of nodes with both roles."""
        return sum(node.controls for node in self.brokers)

    @property
    def bootstrap(self) -> str:
        """The controllers' addresses, as --bootstrap-controllers takes them."""
        return ",".join(f"{HOST}:{node.port}" for node in self.controllers)

    @property
    def bootstrap_servers(self) -> str:
        """The brokers' addresses, as --bootstrap and `bootstrap.servers` of Kafka's clients take them."""
        return ",".join(f"{HOST}:{node.kafka_port}" for node in self.brokers if node.kafka_port)

    def home(self, node: LocalNode) -> Path:
        return self.directory / node.name

    def data(self, node: LocalNode) -> Path:
        return self.home(node) / "data"

    def log_dirs(self, node: LocalNode) -> list[Path]:
        """The node's `log.dirs`."""
        numbers = range(1, len(node.log_directory_ids) + 1)
        return [self.home(node) / f"data-{number}" for number in numbers] or [self.data(node)]

    def config(self, node: LocalNode) -> Path:
        return self.home(node) / "node.properties"

    def log_file(self, node: LocalNode) -> Path:
        return self.home(node) / "process.log"

    def pid_file(self, node: LocalNode) -> Path:
        return self.home(node) / "process.json"

    def metadata_log(self, node: LocalNode) -> Path:
        return self.data(node) / "__cluster_metadata-0"

    def node(self, name: str) -> LocalNode:
        """The node named `name`, such as controller-3000. Raises KeyError."""
        for node in self.manifest.nodes:
            if node.name == name:
                return node
        raise KeyError(name)


def free_ports(count: int) -> list[int]:
    """Distinct ports of the loopback interface on which nothing listens now.

    They are drawn from many ports below the kernel's range for outgoing connections: a killed node finds its
    port free when it restarts, and two clusters that are created at once seldom draw the same. A process
    never gets a port twice, since a free port may not stay free. Two processes that draw at once get
    different ports: each keeps its ports bound, beside the node that listens there.
    """
    rng = random.SystemRandom()
    found: list[int] = []
    while len(found) < count:
        port = rng.choice(PORTS)
        if port in _given:
            continue
        kept = socket.socket()
        try:
            kept.bind((HOST, port))
        except OSError:
            kept.close()
            continue
        # With this option, which servers set too, a node may listen on the port of this idle socket.
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _given[port] = kept
        if len(_given) > _KEPT_MAX:
            next(each for each in _given.values() if each.fileno() >= 0).close()
        found.append(port)
    return found


def open_layout(directory: Path) -> Layout:
    """The cluster in `directory`. Raises Failure if there is none, or an incomplete one."""
    path = directory / MANIFEST
    if not path.is_file():
        raise Failure(
            f"{directory} has no local cluster; start one with: metaquorum local up --directory "
            f"{shlex.quote(str(directory))}"
        )
    try:
        manifest = msgspec.json.decode(path.read_bytes(), type=ClusterManifest)
    except msgspec.MsgspecError as error:
        raise Failure(
            f"{path} is damaged ({error}); remove the whole directory if you do not need it"
        ) from error
    if manifest.version != MANIFEST_VERSION:
        raise Failure(
            f"{path} has version {manifest.version}, and this release supports {MANIFEST_VERSION}; use a "
            "newer release"
        )
    from metaquorum.cli.formatted import existing_cluster_id

    layout = Layout(directory=directory.resolve(), manifest=manifest)
    for node in layout.nodes:
        found = existing_cluster_id(layout.data(node))
        if found is not None and found != manifest.cluster_id:
            raise Failure(
                f"{layout.data(node)} belongs to cluster {found}, but {path} belongs to cluster "
                f"{manifest.cluster_id}; give another --directory"
            )
    return layout


def create(
    directory: Path,
    *,
    cluster_id: str | None = None,
    controllers: int = 3,
    brokers: int = 3,
    combined: int = 0,
    ports: Sequence[int] | None = None,
    extra: Mapping[str, Mapping[str, str]] | None = None,
    dynamic_voters: bool = False,
) -> Layout:
    """Creates and formats a new cluster in an empty or absent directory. Raises Failure for any other one.

    `combined`: number of nodes with both roles; then there are no others. `ports`: one per node, controllers
    first; the other ports are drawn then. `extra`: more configuration lines by role. `dynamic_voters`: the
    controllers are the first voter set, in the log, which can change; otherwise the voters are configured.
    """
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise Failure(f"{directory} is not empty and has no local cluster; give a new or empty --directory")
    rng = random.SystemRandom()
    chosen = cluster_id or uuid_to_text(random_uuid(rng))
    try:
        uuid_from_text(chosen)
    except ValueError as error:
        raise Failure(str(error)) from error
    nodes = _new_nodes(_roles(controllers, brokers, combined), ports, rng)
    layout = Layout(
        directory=directory.resolve(),
        manifest=ClusterManifest(
            version=MANIFEST_VERSION, cluster_id=chosen, nodes=nodes, dynamic_voters=dynamic_voters
        ),
    )
    for node in layout.nodes:
        _format(layout, node, (extra or {}).get(node.role, {}), votes=dynamic_voters)
    _write_manifest(layout)
    return layout


def grow(layout: Layout, controllers: int) -> Layout:
    """The cluster with new controllers, formatted to join as observers until they become voters. Existing
    nodes stay as they are. Raises Failure."""
    known = layout.controllers
    rng = random.SystemRandom()
    usual = [node.port for node in known] == [CONTROLLER_PORT + at for at in range(len(known))]
    roles = _roles(controllers, 0)[len(known) :]
    more = _new_nodes(roles, None if usual else free_ports(len(roles)), rng)
    grown = Layout(
        directory=layout.directory,
        manifest=msgspec.structs.replace(layout.manifest, nodes=(*known, *more, *layout.brokers)),
    )
    for node in more:
        # Left by an interrupted command: no manifest names it.
        shutil.rmtree(grown.home(node), ignore_errors=True)
        _format(grown, node, {}, votes=False, joins=True)
    _write_manifest(grown)
    return grown


def _format(
    layout: Layout, node: LocalNode, extra: Mapping[str, str], *, votes: bool, joins: bool = False
) -> None:
    """Writes a node's configuration and identity. `votes`: with the first voter set."""
    from metaquorum.cli.formatting.format import FormatPlan, apply_plan
    from metaquorum.cli.formatting.releases import DEFAULT_RELEASE, DYNAMIC_RELEASE

    make_private_directory(layout.home(node))
    private_file(layout.config(node)).write_text(config_text(layout, node, extra, joins=joins))
    dynamic = layout.manifest.dynamic_voters or joins
    apply_plan(
        FormatPlan(
            directories=tuple(map(str, dict.fromkeys((layout.data(node), *layout.log_dirs(node))))),
            cluster_id=layout.cluster_id,
            node_id=node.node_id,
            directory_ids=(node.directory_id, *node.log_directory_ids),
            release=DYNAMIC_RELEASE if dynamic else DEFAULT_RELEASE,
            voters=_first_voters(layout) if votes and node.controls else (),
        )
    )


def _first_voters(layout: Layout) -> tuple[Voter, ...]:
    from metaquorum.cli.formatting.voters import new_voter

    return tuple(
        new_voter(node.node_id, HOST, node.port, uuid_from_text(node.directory_id), LISTENER)
        for node in layout.controllers
    )


def _write_manifest(layout: Layout) -> None:
    """Atomically: after a crash there is the old manifest or the new one."""
    path = layout.directory / MANIFEST
    temporary = path.with_name(path.name + ".tmp")
    private_file(temporary).write_bytes(msgspec.json.format(msgspec.json.encode(layout.manifest), indent=2))
    temporary.replace(path)


def _roles(controllers: int, brokers: int, combined: int = 0) -> list[tuple[str, int]]:
    """(role, node id) of every node of a new cluster."""
    if combined:
        return [("combined", at) for at in range(combined)]
    roles = [("controller", FIRST_CONTROLLER_ID + at) for at in range(controllers)]
    return roles + [("broker", at) for at in range(brokers)]


def _new_nodes(
    roles: Sequence[tuple[str, int]], ports: Sequence[int] | None, rng: random.Random
) -> tuple[LocalNode, ...]:
    drawn = iter([] if ports is None else [each for each in free_ports(4 * len(roles)) if each not in ports])
    nodes = []
    for at, (role, node_id) in enumerate(roles):
        serving = BROKER_PORT + node_id
        port = serving if role == "broker" else CONTROLLER_PORT + node_id % FIRST_CONTROLLER_ID
        metrics, kafka = port + METRICS_ABOVE, serving + KAFKA_ABOVE
        if ports is not None:
            port, serving, metrics, kafka = ports[at], next(drawn), next(drawn), next(drawn)
        nodes.append(
            LocalNode(
                role=role,
                node_id=node_id,
                port=port,
                directory_id=uuid_to_text(random_uuid(rng)),
                metrics_port=metrics,
                kafka_port=0 if role == "controller" else kafka,
                broker_port=serving if role == "combined" else 0,
                log_directory_ids=tuple(
                    uuid_to_text(random_uuid(rng)) for _ in range(BROKER_LOG_DIRS if role == "broker" else 0)
                ),
            )
        )
    return tuple(nodes)


def config_text(layout: Layout, node: LocalNode, extra: Mapping[str, str], *, joins: bool = False) -> str:
    """The configuration file of one node, in Kafka's key names. `joins`: its voters are in the log."""
    if layout.manifest.dynamic_voters or joins:
        quorum = {"controller.quorum.bootstrap.servers": layout.bootstrap}
    else:
        voters = ",".join(f"{one.node_id}@{HOST}:{one.port}:{one.directory_id}" for one in layout.controllers)
        quorum = {"controller.quorum.voters": voters}
    listeners = [f"{LISTENER if node.controls else GRPC_LISTENER}://{HOST}:{node.port}"]
    if node.broker_port:
        listeners.append(f"{GRPC_LISTENER}://{HOST}:{node.broker_port}")
    if node.kafka_port:
        listeners.insert(0, f"{KAFKA_LISTENER}://{HOST}:{node.kafka_port}")
    values = {
        "process.roles": "broker,controller" if node.role == "combined" else node.role,
        "node.id": str(node.node_id),
        **quorum,
        "controller.listener.names": LISTENER,
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,GRPC:PLAINTEXT",
        "listeners": ",".join(listeners),
        "log.dirs": ",".join(map(str, layout.log_dirs(node))),
    }
    if node.serves:
        # As in Kafka's sample configurations: the default of 3 needs three brokers.
        for topic in ("offsets.topic", "transaction.state.log"):
            values[f"{topic}.replication.factor"] = str(min(3, len(layout.brokers)))
        values["transaction.state.log.min.isr"] = str(min(2, len(layout.brokers)))
        values["group.initial.rebalance.delay.ms"] = "0"
    if node.log_directory_ids:
        values["metadata.log.dir"] = str(layout.data(node))
    if node.metrics_port:
        values["metrics.listener"] = f"http://{HOST}:{node.metrics_port}"
    values.update(extra)
    return "".join(f"{key}={value}\n" for key, value in values.items())
