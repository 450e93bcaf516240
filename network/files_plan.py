"""How a process shares its file descriptors: for logs and elections first, then segments and connections.

A stranger's connections come out of a share of their own, so that the log always has what it needs.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Mapping
from typing import Self

import msgspec

from metaquorum.config.node import NodeConfig
from metaquorum.metadata.settings.keys import BROKER, CONTROLLER
from metaquorum.network.limits import UNLIMITED, ConnectionLimits
from metaquorum.network.refused_callers import RefusedCallers
from metaquorum.platforms import MANY_FILES, raise_open_files
from metaquorum.storage.disk.descriptors import DESCRIPTORS

RESERVED_MIN, RESERVED_MAX, RESERVED_PART = 80, 512, 16
"""For logs, snapshots, votes, connections to other nodes, and the process itself: the least, and this part of
the limit up to the most."""
HELD = 16
"""Of these, how many are held back for logs until the process is out of descriptors."""
METRICS_MAX, METRICS_PART = 16, 32
GRPC_MAX, GRPC_PART = 2_048, 8
QUORUM_PART = 4
"""A combined node's part for its controllers' Kafka listener: other voters have two connections to it, and
each broker one for each request that waits."""
SEGMENTS_MAX, SEGMENTS_PART = 4_096, 3
LEAST = 128
"""Below this a start warns: hardly anything is left for connections."""

_log = logging.getLogger(__name__)


class FilePlan(msgspec.Struct, frozen=True, kw_only=True):
    """Shares of the limit. `grpc`: each gRPC port's connections; `clients`: those of all Kafka listeners;
    `quorum`: those of a combined node's controllers' Kafka listener; `segments`: files of partitions."""

    limit: int
    reserved: int
    metrics: int
    grpc: int
    segments: int
    clients: int
    quorum: int = 0

    @classmethod
    def unlimited(cls) -> Self:
        """The plan where there is no limit."""
        return cls.of(MANY_FILES, roles=(BROKER, CONTROLLER), ports=1, has_quorum=True)

    @classmethod
    def of(
        cls,
        limit: int,
        *,
        roles: tuple[str, ...],
        ports: int,
        serves_clients: bool = False,
        has_quorum: bool = False,
    ) -> Self:
        """The plan for a limit. `ports`: the number of ports for gRPC. `serves_clients`: whether a
        controller has a port for Kafka's protocol. `has_quorum`: whether a combined node has one for its
        quorum."""
        limit = min(limit, MANY_FILES)
        reserved = min(RESERVED_MIN + limit // RESERVED_PART, RESERVED_MAX)
        metrics = min(METRICS_MAX, limit // METRICS_PART)
        rest = max(limit - reserved - metrics, 1)
        if BROKER not in roles:
            grpc = max(min(rest // max(ports + serves_clients, 1), GRPC_MAX), 1)
            return cls(
                limit=limit,
                reserved=reserved,
                metrics=metrics,
                grpc=grpc,
                segments=0,
                clients=grpc if serves_clients else 0,
            )
        quorum = max(min(rest // QUORUM_PART, GRPC_MAX), 1) if has_quorum else 0
        rest = max(rest - quorum, 1)
        grpc = max(min(rest // (GRPC_PART * max(ports, 1)), GRPC_MAX), 1)
        segments = max(min(rest // SEGMENTS_PART, SEGMENTS_MAX), 1)
        return cls(
            limit=limit,
            reserved=reserved,
            metrics=metrics,
            grpc=grpc,
            segments=segments,
            clients=max(rest - grpc * ports - segments, 1),
            quorum=quorum,
        )

    def text(self) -> str:
        """One line for the log."""
        parts = [f"{self.reserved} for logs, elections and connections to other nodes"]
        if self.segments:
            parts.append(f"{self.segments} for segments of partitions")
        if self.clients:
            parts.append(f"{self.clients} for clients' connections")
        if self.quorum:
            parts.append(f"{self.quorum} for connections of other nodes to the quorum's port")
        parts += [f"{self.grpc} for connections to each gRPC port", f"{self.metrics} for metrics"]
        return f"limit of open files {self.limit}: {', '.join(parts)}"


def plan_files(config: NodeConfig) -> FilePlan:
    """Raises the soft limit of open files, and shares it."""
    combined = config.role not in (BROKER, CONTROLLER)
    roles = (config.role,) if config.role in (BROKER, CONTROLLER) else (BROKER, CONTROLLER)
    plan = FilePlan.of(
        raise_open_files(),
        roles=roles,
        ports=len(config.grpc_listeners),
        serves_clients=bool(config.kafka_listeners),
        has_quorum=combined,
    )
    DESCRIPTORS.hold(HELD)
    refused = RefusedCallers()
    DESCRIPTORS.shortage = lambda: refused.log(
        ":0", "no file descriptor is free (ulimit -n): a file of the log was opened with one of the reserve"
    )
    return plan


def log_plan(plan: FilePlan, config: NodeConfig) -> None:
    """Logs the shares; a limit that cannot carry the configuration is a warning."""
    _log.info("%s", plan.text())
    wanted, leaves = config.number("max.connections"), plan.clients or plan.grpc
    if wanted < 2**31 - 1 and wanted > leaves:
        _log.warning(
            "max.connections is %d, but the limit of open files (%d) leaves %d: raise it (ulimit -n, "
            "LimitNOFILE of a service)",
            wanted,
            plan.limit,
            leaves,
        )
    if plan.limit < LEAST:
        _log.warning(
            "the limit of open files is %d, which is not enough: raise it to %d at least (ulimit -n)",
            plan.limit,
            LEAST,
        )


def port_limits(config: NodeConfig, files_max: int) -> ConnectionLimits:
    """The limits of a port that is not Kafka's: of gRPC or metrics."""
    return ConnectionLimits(
        max_connections=config.number("max.connections") if config.role != BROKER else UNLIMITED,
        max_per_ip=config.number("max.connections.per.ip"),
        overrides=addresses_of(config.overrides()),
        files_max=files_max,
        new_max=new_max(config, files_max),
    )


def new_max(config: NodeConfig, connections: int) -> int:
    """How many connections may be new where there may be so many in all."""
    return max(min(config.number("max.connections.unauthenticated"), connections // 4), 1)


def addresses_of(overrides: Mapping[str, int]) -> dict[str, int]:
    """Limits by address for limits by host; a host that does not resolve has none."""
    by_address: dict[str, int] = {}
    for host, most in overrides.items():
        try:
            infos = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except OSError as error:
            _log.warning("max.connections.per.ip.overrides: %s does not resolve: %s", host, error)
            continue
        by_address |= {str(info[4][0]): most for info in infos}
    return by_address
