"""Forms a test cluster: ids, ports, formatted directories, and configured nodes, which do not run yet."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from metaquorum.config.keys import KEYS
from metaquorum.config.node import COMBINED
from metaquorum.errors import StartError
from metaquorum.metadata.features import LEVEL_DYNAMIC_VOTERS, METADATA_VERSION, release_levels
from metaquorum.metadata.records.control import Voter
from metaquorum.node.formatted import bootstrap_checkpoint, new_voter, write_formatted
from metaquorum.node.local_nodes import (
    HOST,
    LocalNode,
    endpoints_of,
    free_ports,
    give_back_ports,
    local_settings,
)
from metaquorum.storage.disk.interface import Disk
from metaquorum.storage.disk.posix import PosixDisk
from metaquorum.storage.errors import DiskError
from metaquorum.storage.files.meta_properties import MetaProperties
from metaquorum.storage.uuids import random_uuid, uuid_from_text, uuid_to_text
from metaquorum.testing.access import ClientAccess
from metaquorum.testing.clock import ClusterClock
from metaquorum.testing.errors import ClusterError
from metaquorum.testing.memory_disk import MemoryDisk

MIB = 1024 * 1024
NODE_BYTES = 16 * MIB
"""What a node needs without data."""
FEW_NODES = 8
"""Up to this many are formed whatever the free memory is."""
FIRST_CONTROLLER_ID = 3000

DEFAULTS = {
    # A killed broker is fenced soon, and not by a pause of this process, which the nodes notice themselves.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "group.initial.rebalance.delay.ms": "0",
    # A voter with a new disk votes again.
    "controller.quorum.auto.join.enable": "true",
    # Voters ask each other less often while there is nothing new: most of what an idle cluster does.
    "controller.quorum.fetch.max.wait.ms": "300",
    # What is committed is known everywhere at once, also while the clock waits for a test.
    "controller.quorum.high.watermark.linger.ms": "0",
    # Every such record is synced by all controllers and followed by all brokers: a third of what an idle
    # cluster does.
    "metadata.max.idle.interval.ms": "5000",
    # Hours that a test has pass are none in which a client, or a broker at its controller, said nothing.
    "connections.max.idle.ms": "-1",
}
"""Settings of every node, where they differ from Kafka's defaults."""
RACK = "broker.rack"
_PORTS = {"controller": 2, "broker": 2, "combined": 4}


class ClusterShape(msgspec.Struct, frozen=True, kw_only=True):
    """What a cluster consists of. `controllers` None: the brokers are controllers, too. `directory` None: the
    data is in memory."""

    brokers: int
    controllers: int | None
    log_dirs: int
    disk_bytes: int
    directory: Path | None
    properties: Mapping[str, str]
    racks: tuple[str, ...]
    """By broker; empty: none has one."""
    access: ClientAccess


def shape_of(
    brokers: int, controllers: int | None, wishes: Mapping[str, Any], access: ClientAccess
) -> ClusterShape:
    """The shape, checked. Raises ClusterError. `wishes`: see `running.Wishes`."""
    log_dirs, directory = wishes.get("log_dirs", 1), wishes.get("directory")
    _check_numbers(brokers, controllers, log_dirs)
    properties = {name: text_of(value) for name, value in (wishes.get("properties") or {}).items()}
    return ClusterShape(
        brokers=brokers,
        controllers=controllers,
        log_dirs=log_dirs,
        disk_bytes=wishes.get("disk_bytes", 256 * MIB),
        access=access,
        directory=None if directory is None else _empty_directory(Path(directory)),
        properties=properties,
        racks=_checked_racks(wishes.get("racks", ()), brokers, properties),
    )


class FormedNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node of a new cluster. `settings`: its configuration in Kafka's names."""

    cluster_id: str
    local: LocalNode
    settings: Mapping[str, str]
    disk: Disk
    format_again: Callable[[Disk], None]
    """Formats an empty disk, which replaces the old one."""


def form(shape: ClusterShape, clock: ClusterClock, rng: random.Random) -> list[FormedNode]:
    """The nodes of a new cluster. Raises ClusterError."""
    nodes = _local_nodes(shape, rng)
    try:
        return _Formatter(shape, clock, rng, nodes).formatted()
    except DiskError as error:
        give_back_ports(ports_of(nodes))
        raise ClusterError(str(error)) from error
    except BaseException:
        give_back_ports(ports_of(nodes))
        raise


def ports_of(nodes: Iterable[LocalNode]) -> list[int]:
    """The ports that they listen on."""
    each = (
        (node.port, node.kafka_port, node.broker_port, node.client_port, node.quorum_port) for node in nodes
    )
    return [port for ports in each for port in ports if port]


class _Formatter:
    def __init__(
        self,
        shape: ClusterShape,
        clock: ClusterClock,
        rng: random.Random,
        nodes: tuple[LocalNode, ...],
    ) -> None:
        self._shape = shape
        self._clock = clock
        self._rng = rng
        self._nodes = nodes
        self._cluster_id = uuid_to_text(random_uuid(rng))
        level = LEVEL_DYNAMIC_VOTERS
        features = {METADATA_VERSION: level, **release_levels(level)}
        self._bootstrap = bootstrap_checkpoint(features, clock.wall_ms())

    def formatted(self) -> list[FormedNode]:
        voters = tuple(
            new_voter(each.node_id, HOST, uuid_from_text(each.directory_id), endpoints_of(each))
            for each in self._nodes
            if each.controls
        )
        return [self._node(local, voters if local.controls else ()) for local in self._nodes]

    def _node(self, local: LocalNode, voters: tuple[Voter, ...]) -> FormedNode:
        shape = self._shape
        disk: Disk = PosixDisk()
        if shape.directory is None:
            disk = MemoryDisk(self._new_rng(), shape.disk_bytes, self._clock.wall_ms)
        home = (shape.directory or Path("/")) / local.name
        own = home / "data"
        log_dirs = [home / f"data-{at + 1}" for at in range(len(local.log_directory_ids))] or [own]
        paths = [str(path) for path in dict.fromkeys((own, *log_dirs))]
        ids = [uuid_from_text(each) for each in (local.directory_id, *local.log_directory_ids)]

        def write(disk: Disk, index: int, directory_id: bytes, voters: tuple[Voter, ...]) -> None:
            identity = MetaProperties(
                cluster_id=self._cluster_id, node_id=local.node_id, directory_id=directory_id
            )
            now_ms = self._clock.wall_ms()
            write_formatted(disk, paths[index], identity, self._bootstrap, voters, timestamp_ms=now_ms)

        def format_again(empty: Disk) -> None:
            for index in range(len(paths)):
                write(empty, index, random_uuid(self._rng), ())

        for index in range(len(paths)):
            write(disk, index, ids[index], () if index else voters)
        wishes = {**DEFAULTS, **shape.properties}
        if shape.racks and local.serves:
            wishes[RACK] = shape.racks[local.node_id]
        plain = local_settings(local, self._nodes, log_dirs, own, static=False)
        settings = {
            **plain,
            **shape.access.settings(plain, local.client_port),
            **{name: value for name, value in wishes.items() if _applies_to(name, local.role)},
        }
        return FormedNode(
            cluster_id=self._cluster_id,
            local=local,
            settings=settings,
            disk=disk,
            format_again=format_again,
        )

    def _new_rng(self) -> random.Random:
        return random.Random(self._rng.getrandbits(64))


def _applies_to(name: str, role: str) -> bool:
    """False for a setting of the other role."""
    key = KEYS.get(name)
    return key is None or role == COMBINED or role in key.roles


def _local_nodes(shape: ClusterShape, rng: random.Random) -> tuple[LocalNode, ...]:
    role = "combined" if shape.controllers is None else "broker"
    kinds = [(role, at) for at in range(shape.brokers)]
    kinds += [("controller", FIRST_CONTROLLER_ID + at) for at in range(shape.controllers or 0)]
    own_ports = 0 if shape.access.is_plain else shape.brokers
    try:
        ports = iter(free_ports(own_ports + sum(_PORTS[role] for role, _ in kinds)))
    except StartError as error:
        raise ClusterError(str(error)) from error
    nodes = []
    for role, node_id in kinds:
        more = shape.log_dirs if role != "controller" and shape.log_dirs > 1 else 0
        nodes.append(
            LocalNode(
                role=role,
                node_id=node_id,
                port=next(ports),
                directory_id=uuid_to_text(random_uuid(rng)),
                kafka_port=0 if role == "controller" else next(ports),
                broker_port=next(ports) if role == "combined" else 0,
                client_port=0 if role == "controller" or not own_ports else next(ports),
                quorum_port=0 if role == "broker" else next(ports),
                log_directory_ids=tuple(uuid_to_text(random_uuid(rng)) for _ in range(more)),
            )
        )
    return tuple(nodes)


def text_of(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _check_numbers(brokers: int, controllers: int | None, log_dirs: int) -> None:
    """Raises ClusterError."""
    if brokers < 1:
        raise ClusterError(f"brokers={brokers}: a cluster needs at least one broker")
    if controllers is not None and controllers < 1:
        raise ClusterError(
            f"controllers={controllers}: give at least one, or none, and brokers are controllers, too"
        )
    if log_dirs < 1:
        raise ClusterError(f"log_dirs={log_dirs}: a broker needs at least one")
    count = brokers + (controllers or 0)
    if count > FEW_NODES:
        import psutil

        free = psutil.virtual_memory().available
        if count * NODE_BYTES > free:
            raise ClusterError(
                f"{count} nodes need {count * NODE_BYTES // MIB} MiB, but {free // MIB} are free: have fewer"
            )


def _checked_racks(racks: Sequence[str], brokers: int, properties: Mapping[str, str]) -> tuple[str, ...]:
    """Raises ClusterError."""
    if not racks:
        return ()
    if len(racks) != brokers or not all(each.strip() for each in racks):
        raise ClusterError(f"racks={racks!r}: write {brokers}, one name for each broker")
    if RACK in properties:
        raise ClusterError(f"{RACK} is in `properties`, and racks={racks!r}: leave out one of them")
    return tuple(racks)


def _empty_directory(directory: Path) -> Path:
    """Raises ClusterError for one that holds something."""
    if directory.exists() and not directory.is_dir():
        raise ClusterError(f"{directory} is a file: give an empty directory")
    if directory.is_dir() and any(directory.iterdir()):
        raise ClusterError(f"{directory} is not empty: give an empty one, or one that does not exist")
    return directory.absolute()
