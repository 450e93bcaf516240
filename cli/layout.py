"""The directory of a local cluster: which nodes it has, their ports, identities and files.

Owns `cluster.json` and the nodes' configuration files. Starts nothing (see `processes`) and formats
nothing by itself: `create` calls the same formatter as `metaquorum storage format`.

    DIRECTORY/cluster.json                 the manifest: cluster id and nodes
    DIRECTORY/controller-3000/node.properties, process.json, process.log, data/
    DIRECTORY/broker-0/...                 the same, and data-1/, data-2/ for partitions
    DIRECTORY/combined-0/...               controller and broker in one process; data/ has everything

A broker's `data/` holds the metadata log only, so that any directory of partitions may die.
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
"""A node of a cluster with the usual ports shows its figures so far above its own port."""
KAFKA_ABOVE = 400
"""And a broker speaks Kafka's protocol so far above it."""
BROKER_LOG_DIRS = 2
HOST = "127.0.0.1"
LISTENER = "CONTROLLER"
KAFKA_LISTENER, GRPC_LISTENER = "PLAINTEXT", "GRPC"
"""A broker's: for Kafka's clients and other brokers, and for this program's commands."""
PORTS = range(12_000, 32_000)
"""What `free_ports` draws from."""
_given: dict[int, socket.socket] = {}
"""What `free_ports` has given out in this process, each with the socket that keeps it while it is new."""
_KEPT_MAX = 256


class LocalNode(msgspec.Struct, frozen=True, kw_only=True):
    """One process of the cluster. `role` is controller, broker or combined; `port` is a controller's, or that
    of a broker's gRPC."""

    role: str
    node_id: int
    port: int
    directory_id: str
    metrics_port: int = 0
    """0: it shows no figures."""
    kafka_port: int = 0
    """Where a broker speaks Kafka's protocol; 0: nowhere."""
    broker_port: int = 0
    """Where the broker of a combined node speaks gRPC."""
    log_directory_ids: tuple[str, ...] = ()
    """A broker's directories of partitions, data-1 and so on; none: everything is in data."""

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
        """Where its roles say whether they serve."""
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
    """A local cluster's directory, opened: absolute path and manifest."""

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
        """Every node, controllers first: the order in which they start."""
        return [*self.controllers, *(node for node in self.brokers if not node.controls)]

    @property
    def combined(self) -> int:
        """How many of them have both roles."""
        return sum(node.controls for node in self.brokers)

    @property
    def bootstrap(self) -> str:
        """The controllers' addresses, as --bootstrap-controllers takes them."""
        return ",".join(f"{HOST}:{node.port}" for node in self.controllers)

    @property
    def bootstrap_servers(self) -> str:
        """The brokers' addresses, as --bootstrap takes them, and `bootstrap.servers` of Kafka's clients."""
        return ",".join(f"{HOST}:{node.kafka_port}" for node in self.brokers if node.kafka_port)

    def home(self, node: LocalNode) -> Path:
        return self.directory / node.name

    def data(self, node: LocalNode) -> Path:
        return self.home(node) / "data"

    def log_dirs(self, node: LocalNode) -> list[Path]:
        """What the node's `log.dirs` names."""
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
        """The node called `name` (controller-3000). Raises KeyError."""
        for node in self.manifest.nodes:
            if node.name == name:
                return node
        raise KeyError(name)


def free_ports(count: int) -> list[int]:
    """Ports of the loopback interface that no one listens on now, all different.

    They are below those that the kernel gives to outgoing connections, and are drawn from many: a node that
    is killed finds its port free when it starts again, and two clusters that are made at once seldom meet.
    One process is never given a port twice: that it is free now does not mean that it stays so. And two that
    draw at once get different ones: each keeps what it was given bound, beside the node that listens there.
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
        # A socket that sets this, as those of servers do, may share the port while this one does not listen.
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _given[port] = kept
        if len(_given) > _KEPT_MAX:
            next(each for each in _given.values() if each.fileno() >= 0).close()
        found.append(port)
    return found


def open_layout(directory: Path) -> Layout:
    """The cluster in `directory`. Raises Failure where there is none, or not a whole one."""
    path = directory / MANIFEST
    if not path.is_file():
        raise Failure(
            f"{directory} holds no local cluster; start one with: metaquorum local up --directory "
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
    """Makes and formats a new cluster in an empty or absent directory. Raises Failure for any other one.

    `combined`: number of nodes with both roles; there are no others then. `ports`: one per node, controllers
    first; the others that nodes need are drawn then. `extra`: more configuration lines by role.
    `dynamic_voters`: the controllers are the first voter set in the log, which can change; otherwise
    they are configured.
    """
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise Failure(f"{directory} is not empty and holds no local cluster; give a new or empty --directory")
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
    """The cluster with more controllers, formatted to join it: they observe until they are made voters. Those
    that are there stay as they are. Raises Failure."""
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
        # What a command that was interrupted left is of no use: it is in no manifest.
        shutil.rmtree(grown.home(node), ignore_errors=True)
        _format(grown, node, {}, votes=False, joins=True)
    _write_manifest(grown)
    return grown


def _format(
    layout: Layout, node: LocalNode, extra: Mapping[str, str], *, votes: bool, joins: bool = False
) -> None:
    """Writes one node's configuration and identity. `votes`: into a directory that holds the first voters."""
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
    """In one step: a crash leaves the old one or the new one."""
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
    """The configuration file of one node, in Kafka's key names. `joins`: it finds its voters in the log."""
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
        # As in the files that Kafka comes with: its default of 3 needs three brokers.
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
