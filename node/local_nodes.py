"""The nodes of a cluster on this machine: their ports and their settings, in files or in memory."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from metaquorum.errors import StartError
from metaquorum.platforms import idle_sockets_keep_ports, may_bind_again

HOST = "127.0.0.1"
LISTENER, CONTROLLER_GRPC_LISTENER = "CONTROLLER", "GRPC_CONTROLLER"
"""Controllers' listeners: for voters and clients of Kafka's protocol, and for brokers and commands."""
KAFKA_LISTENER, GRPC_LISTENER = "PLAINTEXT", "GRPC"
"""A broker's listeners: for Kafka's clients and other brokers, and for the commands of this program."""
PORTS = range(12_000, 32_000)
"""The range that `free_ports` draws from."""
_given: dict[int, socket.socket] = {}
"""Ports that `free_ports` returned in this process, each with the socket that reserves it for a time."""
_KEPT_MAX = 256
_DRAWS_MAX = 4 * len(PORTS)
"""Until then, any free port is found."""


class LocalNode(msgspec.Struct, frozen=True, kw_only=True):
    """One process of the cluster. `role` is controller, broker or combined; `port` is a controller's or a
    broker's gRPC port."""

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
    client_port: int = 0
    """A broker's port for clients alone; 0: they use `kafka_port`."""
    quorum_port: int = 0
    """A controller's port for Kafka's protocol, by which voters ask each other."""
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


def endpoints_of(node: LocalNode) -> tuple[tuple[str, int], ...]:
    """The names and ports of a controller's listeners, as the voters record has them: first that on which
    voters ask."""
    return (LISTENER, node.quorum_port), (CONTROLLER_GRPC_LISTENER, node.port)


def local_settings(
    node: LocalNode, nodes: Sequence[LocalNode], log_dirs: Sequence[Path], metadata_dir: Path, *, static: bool
) -> dict[str, str]:
    """A node's configuration in Kafka's key names. `nodes`: all of the cluster; `static`: the voters are not
    in the log."""
    controllers = [each for each in nodes if each.controls]
    brokers = [each for each in nodes if each.serves]
    # Brokers ask over gRPC.
    ports = {each.node_id: each.quorum_port if node.controls else each.port for each in controllers}
    if static:
        voters = ",".join(
            f"{each.node_id}@{HOST}:{ports[each.node_id]}:{each.directory_id}" for each in controllers
        )
        quorum = {"controller.quorum.voters": voters}
    else:
        quorum = {"controller.quorum.bootstrap.servers": ",".join(f"{HOST}:{at}" for at in ports.values())}
    of_grpc = CONTROLLER_GRPC_LISTENER if node.controls else GRPC_LISTENER
    listeners = [f"{of_grpc}://{HOST}:{node.port}"]
    if node.controls:
        listeners.insert(0, f"{LISTENER}://{HOST}:{node.quorum_port}")
    if node.broker_port:
        listeners.append(f"{GRPC_LISTENER}://{HOST}:{node.broker_port}")
    if node.kafka_port:
        listeners.insert(0, f"{KAFKA_LISTENER}://{HOST}:{node.kafka_port}")
    values = {
        "process.roles": "broker,controller" if node.role == "combined" else node.role,
        "node.id": str(node.node_id),
        **quorum,
        "controller.listener.names": f"{LISTENER},{CONTROLLER_GRPC_LISTENER}",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,GRPC:PLAINTEXT",
        "listeners": ",".join(listeners),
        "log.dirs": ",".join(map(str, log_dirs)),
    }
    if node.serves:
        # As in Kafka's sample configurations: the default of 3 needs three brokers.
        for topic in ("offsets.topic", "transaction.state.log"):
            values[f"{topic}.replication.factor"] = str(min(3, len(brokers)))
        values["transaction.state.log.min.isr"] = str(min(2, len(brokers)))
        values["group.initial.rebalance.delay.ms"] = "0"
    if node.log_directory_ids:
        values["metadata.log.dir"] = str(metadata_dir)
    if node.metrics_port:
        values["metrics.listener"] = f"http://{HOST}:{node.metrics_port}"
    return values


def free_ports(count: int) -> list[int]:
    """Distinct ports of the loopback interface on which nothing listens now.

    They are drawn from many ports below the kernel's range for outgoing connections: a killed node finds its
    port free when it restarts, and two clusters that are created at once seldom draw the same. A process
    never gets a port twice, since a free port may not stay free. Two processes that draw at once get
    different ports: each keeps its ports bound, beside the node that listens there. Raises StartError if the
    range is taken.
    """
    rng = random.SystemRandom()
    ports: list[int] = []
    draws = 0
    while len(ports) < count:
        draws += 1
        if draws > _DRAWS_MAX:
            give_back_ports(ports)
            raise StartError(
                f"{count} ports are needed, and of {PORTS.start} to {PORTS.stop - 1} at {HOST} nearly all are"
                " taken: end other programs, or have fewer nodes"
            )
        port = rng.choice(PORTS)
        if port in _given:
            continue
        kept = socket.socket()
        try:
            kept.bind((HOST, port))
        except OSError:
            kept.close()
            continue
        _given[port] = kept
        if idle_sockets_keep_ports():
            # With this option, which servers set too, a node may listen on the port of this idle socket.
            may_bind_again(kept)
        else:
            kept.close()
        if len(_given) > _KEPT_MAX:
            next((each for each in _given.values() if each.fileno() >= 0), kept).close()
        ports.append(port)
    return ports


def give_back_ports(ports: Iterable[int]) -> None:
    """No node listens there any longer: this process, or another one, may draw them again."""
    for port in ports:
        kept = _given.pop(port, None)
        if kept is not None:
            kept.close()
