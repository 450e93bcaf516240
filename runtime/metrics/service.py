"""Starts the metrics of a process: the socket of `metrics.listener`, and the endpoint on it.

Owns that HTTP and the text format are only imported if a listener is configured. Does not collect a value:
sources do.
"""

from __future__ import annotations

import functools
import socket
import ssl
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from metaquorum.metadata.text.addresses import address_text
from metaquorum.runtime.clock import Clock
from metaquorum.runtime.config.addresses import Listener
from metaquorum.runtime.config.tls import TlsFiles
from metaquorum.runtime.errors import StartError
from metaquorum.runtime.metrics import catalogue as names
from metaquorum.runtime.metrics.families import Family, Source
from metaquorum.runtime.metrics.node import NodeStatistics
from metaquorum.runtime.metrics.rights import ScraperRights
from metaquorum.runtime.tls.material import TlsMaterial
from metaquorum.storage.disk.interface import join
from metaquorum.storage.disk.posix import PosixDisk
from metaquorum.storage.files.snapshots import latest_snapshot, snapshot_path
from metaquorum.storage.log.config import METADATA_DIRECTORY

if TYPE_CHECKING:
    from metaquorum.runtime.metrics.endpoint import MetricsEndpoint

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
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        # Without this, another process could bind the address too.
        bound.listen(BACKLOG)
    except OSError as error:
        bound.close()
        raise StartError(
            f"cannot listen on {address_text(host, port)} for metrics: {error.strerror}; "
            "stop the process that uses it, or choose another port in metrics.listener"
        ) from error
    bound.setblocking(False)
    return BoundMetrics(bound, tls)


async def open_endpoint(
    bound: BoundMetrics, sources: Sequence[Source], clock: Clock, rights: ScraperRights | None
) -> MetricsEndpoint:
    """Serves the metrics of `sources` on a bound socket until closed; `rights` None: to every client."""
    from metaquorum.runtime.metrics.endpoint import MetricsEndpoint
    from metaquorum.runtime.metrics.page import CONTENT_TYPE, Page

    endpoint = MetricsEndpoint(
        Page(sources, clock).render, CONTENT_TYPE, None if rights is None else rights.refusal
    )
    await endpoint.start(*bound)
    return endpoint


def note_first_snapshot(stats: NodeStatistics, metadata_log_dir: Path) -> None:
    """Counts the snapshot that the process started from, if there is one."""
    directory = join(str(metadata_log_dir), METADATA_DIRECTORY)
    newest = latest_snapshot(PosixDisk(), directory)
    if newest is not None:
        stats.snapshot_loaded(Path(snapshot_path(directory, newest)).stat().st_size)


def node_info(node_id: int, role: str, cluster_id: str) -> Family:
    """The metric that identifies the node and the release."""
    return Family(names.INFO, [((str(node_id), role, cluster_id, _version()), 1.0)])


@functools.cache
def _version() -> str:
    try:
        return version("metaquorum")
    except PackageNotFoundError:
        return "unknown"
