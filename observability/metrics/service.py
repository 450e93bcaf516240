"""Starts the metrics of a process: the socket of `metrics.listener`, and the endpoint on it."""

from __future__ import annotations

import functools
import socket
import ssl
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from metaquorum.clock import Clock
from metaquorum.config.addresses import Listener
from metaquorum.config.security import TlsFiles
from metaquorum.errors import StartError, cannot_listen
from metaquorum.metadata.text.addresses import address_text
from metaquorum.network.limits import ConnectionLimits
from metaquorum.network.tls import TlsMaterial
from metaquorum.observability.metrics import catalogue as names
from metaquorum.observability.metrics.families import Family, Source
from metaquorum.observability.metrics.rights import ScraperRights
from metaquorum.observability.metrics.statistics import NodeStatistics
from metaquorum.platforms import may_bind_again
from metaquorum.storage.disk.interface import Disk, join
from metaquorum.storage.files.snapshots import latest_snapshot, snapshot_path
from metaquorum.storage.log.config import METADATA_DIRECTORY

if TYPE_CHECKING:
    from metaquorum.observability.metrics.endpoint import MetricsEndpoint

BACKLOG = 16
"""Connections that the kernel queues until the endpoint accepts them."""


class BoundMetrics(NamedTuple):
    """The socket of `metrics.listener`, and its TLS context for https; None for http."""

    socket: socket.socket
    tls: ssl.SSLContext | None


def bind_metrics(listener: Listener | None, files: TlsFiles) -> BoundMetrics | None:
    """Binds the listener, before anything else starts; None if none is configured. Raises StartError or
    ConfigError, in one line."""
    if listener is None:
        return None
    host, port, tls = listener.host, listener.port, None
    if listener.is_tls:
        tls = TlsMaterial.load(files).server_context("required" if files.client_auth else "none")
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise StartError(
            f"cannot resolve the host of metrics.listener {host!r}: {error.strerror}; correct it"
        ) from error
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        may_bind_again(bound)
        bound.bind(address)
        # Without this, another process could bind the address too.
        bound.listen(BACKLOG)
    except OSError as error:
        bound.close()
        where = f"{address_text(host, port)} for metrics"
        raise cannot_listen(where, error, "metrics.listener") from error
    bound.setblocking(False)
    return BoundMetrics(bound, tls)


async def open_endpoint(
    bound: BoundMetrics,
    sources: Sequence[Source],
    clock: Clock,
    rights: ScraperRights | None,
    limits: ConnectionLimits | None = None,
) -> MetricsEndpoint:
    """Serves the metrics of `sources` on a bound socket until closed; `rights` None: to every client.
    `limits`: of the connections."""
    from metaquorum.observability.metrics.endpoint import CONTENT_TYPE, MetricsEndpoint, Page

    endpoint = MetricsEndpoint(
        Page(sources, clock).render, CONTENT_TYPE, None if rights is None else rights.refusal, limits
    )
    await endpoint.start(*bound)
    return endpoint


def note_first_snapshot(stats: NodeStatistics, metadata_log_dir: Path, disk: Disk) -> None:
    """Counts the snapshot that the process started from, if there is one."""
    directory = join(str(metadata_log_dir), METADATA_DIRECTORY)
    newest = latest_snapshot(disk, directory)
    if newest is not None:
        stats.snapshot_loaded(disk.file_size(snapshot_path(directory, newest)))


def node_info(node_id: int, role: str, cluster_id: str) -> Family:
    """The metric that identifies the node and the release."""
    return Family(names.INFO, [((str(node_id), role, cluster_id, _version()), 1.0)])


@functools.cache
def _version() -> str:
    try:
        return version("metaquorum")
    except PackageNotFoundError:
        return "unknown"
