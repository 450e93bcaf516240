"""The directory of a local cluster: its nodes, their ports, identities and files.

`create` calls the formatter of `metaquorum storage format`.

    DIRECTORY/cluster.json                 the manifest: cluster id and nodes
    DIRECTORY/controller-3000/node.properties, process.json, process.log, data/
    DIRECTORY/broker-0/...                 the same, and data-1/, data-2/ for partitions
    DIRECTORY/combined-0/...               controller and broker in one process; data/ has everything

A broker's `data/` holds the metadata log only, so that any directory of partitions may fail.
"""

from __future__ import annotations

import os
import random
import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from metaquorum.cli.errors import Failure
from metaquorum.node.local_nodes import HOST, LocalNode, endpoints_of, free_ports, local_settings
from metaquorum.storage.disk.interface import join
from metaquorum.storage.disk.posix import PosixDisk, make_private_directory, private_file
from metaquorum.storage.errors import CorruptFileError, FileMissingError
from metaquorum.storage.files.meta_properties import FILE_NAME as META_PROPERTIES
from metaquorum.storage.files.meta_properties import MetaProperties, cluster_id_problem, load_meta_properties
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
"""On the usual ports, a node's port for Kafka's protocol is its own port plus this."""
BROKER_LOG_DIRS = 2


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

    layout = Layout(directory=Path(os.path.realpath(directory)), manifest=manifest)
    if not all(node.quorum_port for node in layout.controllers):
        raise Failure(
            f"{path} is of an earlier build, whose controllers had no port for Kafka's protocol: give "
            "another --directory (`metaquorum log` reads the old one)"
        )
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
    if directory.exists() and not directory.is_dir():
        raise Failure(f"{directory} is not a directory; give a new or empty --directory")
    if directory.exists() and any(directory.iterdir()):
        raise Failure(f"{directory} is not empty and has no local cluster; give a new or empty --directory")
    rng = random.SystemRandom()
    chosen = cluster_id or uuid_to_text(random_uuid(rng))
    problem = cluster_id_problem(chosen)
    if problem is not None:
        raise Failure(problem)
    nodes = _new_nodes(_roles(controllers, brokers, combined), ports, rng)
    layout = Layout(
        directory=Path(os.path.realpath(directory)),
        manifest=ClusterManifest(
            version=MANIFEST_VERSION, cluster_id=chosen, nodes=nodes, dynamic_voters=dynamic_voters
        ),
    )
    for node in layout.nodes:
        _format(layout, node, (extra or {}).get(node.role, {}), votes=dynamic_voters)
    _write_manifest(layout)
    return layout


def adopt(
    directory: Path,
    cluster_id: str,
    nodes: Sequence[LocalNode],
    settings: Mapping[str, Mapping[str, str]],
) -> Layout:
    """A cluster of nodes with dynamic voters that are formatted in a directory already. `settings`: of each
    node, by its name."""
    layout = Layout(
        directory=Path(os.path.realpath(directory)),
        manifest=ClusterManifest(
            version=MANIFEST_VERSION, cluster_id=cluster_id, nodes=tuple(nodes), dynamic_voters=True
        ),
    )
    for node in nodes:
        private_file(layout.config(node)).write_text(_lines(settings[node.name]))
    _write_manifest(layout)
    return layout


def grow(layout: Layout, controllers: int) -> Layout:
    """The cluster with new controllers, formatted to join as observers until they become voters. Existing
    nodes stay as they are. Raises Failure."""
    current = layout.controllers
    rng = random.SystemRandom()
    usual = [node.port for node in current] == [CONTROLLER_PORT + at for at in range(len(current))]
    roles = _roles(controllers, 0)[len(current) :]
    more = _new_nodes(roles, None if usual else free_ports(len(roles)), rng)
    grown = Layout(
        directory=layout.directory,
        manifest=msgspec.structs.replace(layout.manifest, nodes=(*current, *more, *layout.brokers)),
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
    from metaquorum.cli.format import DEFAULT_RELEASE, DYNAMIC_RELEASE, FormatPlan, apply_plan

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
    from metaquorum.node.formatted import new_voter

    return tuple(
        new_voter(node.node_id, HOST, uuid_from_text(node.directory_id), endpoints_of(node))
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
    drawn = iter([] if ports is None else [each for each in free_ports(5 * len(roles)) if each not in ports])
    nodes = []
    for number, (role, node_id) in enumerate(roles):
        serving = BROKER_PORT + node_id
        port = serving if role == "broker" else CONTROLLER_PORT + node_id % FIRST_CONTROLLER_ID
        metrics, kafka, quorum = port + METRICS_ABOVE, serving + KAFKA_ABOVE, port + KAFKA_ABOVE
        if ports is not None:
            port, serving, metrics = ports[number], next(drawn), next(drawn)
            kafka, quorum = next(drawn), next(drawn)
        nodes.append(
            LocalNode(
                role=role,
                node_id=node_id,
                port=port,
                directory_id=uuid_to_text(random_uuid(rng)),
                metrics_port=metrics,
                kafka_port=0 if role == "controller" else kafka,
                broker_port=serving if role == "combined" else 0,
                quorum_port=0 if role == "broker" else quorum,
                log_directory_ids=tuple(
                    uuid_to_text(random_uuid(rng)) for _ in range(BROKER_LOG_DIRS if role == "broker" else 0)
                ),
            )
        )
    return tuple(nodes)


def config_text(layout: Layout, node: LocalNode, extra: Mapping[str, str], *, joins: bool = False) -> str:
    """The configuration file of one node, in Kafka's key names. `joins`: its voters are in the log."""
    static = not (layout.manifest.dynamic_voters or joins)
    values = local_settings(node, layout.nodes, layout.log_dirs(node), layout.data(node), static=static)
    values.update(extra)
    return _lines(values)


def _lines(settings: Mapping[str, str]) -> str:
    return "".join(f"{key}={value}\n" for key, value in settings.items())


def existing_cluster_id(directory: Path) -> str | None:
    """The cluster id of a directory, None if it has no identity. Raises CorruptFileError."""
    try:
        if not (directory / META_PROPERTIES).exists():
            return None
        return load_meta_properties(PosixDisk(), str(directory)).cluster_id
    except FileMissingError:
        return None


def identity_of(directory: str) -> tuple[str, MetaProperties | None, str | None]:
    """(directory, identity or None, problem or None). A bad directory raises nothing."""
    disk = PosixDisk()
    if not disk.is_directory(directory):
        return directory, None, "is a file" if disk.exists(directory) else "does not exist"
    try:
        return directory, load_meta_properties(disk, directory), None
    except CorruptFileError as error:
        if not disk.exists(join(directory, META_PROPERTIES)):
            return directory, None, "is not formatted"
        return directory, None, error.reason
