"""`local up --in-memory` and `--processes`: a test cluster until Ctrl-C, with a control port."""

from __future__ import annotations

import shlex
import threading
from pathlib import Path

import click
import msgspec

from metaquorum.cli.errors import Failure
from metaquorum.cli.interrupts import terminated_in_order
from metaquorum.cli.layout import MANIFEST
from metaquorum.cli.local.fault import CONTROL_FILE, control_file
from metaquorum.platforms import process_runs
from metaquorum.storage.disk.posix import make_private_directory, private_file
from metaquorum.testing.cluster import Cluster
from metaquorum.testing.control import Control, ControlFile, ControlServer
from metaquorum.testing.errors import ClusterError
from metaquorum.testing.running import IN_PROCESS, PROCESSES


def serve_cluster(
    directory: Path, brokers: int, controllers: int | None, timeout_s: float, *, as_processes: bool
) -> None:
    """Runs until Ctrl-C or SIGTERM. Raises Failure."""
    path = directory / CONTROL_FILE
    if (directory / MANIFEST).exists():
        raise Failure(f"{directory} holds a cluster of `local up`; give another --directory")
    if path.exists() and process_runs(control_file(directory).pid):
        raise Failure(f"{path} says that a cluster runs; end it, or give another --directory")
    try:
        mode = PROCESSES if as_processes else IN_PROCESS
        with terminated_in_order(), Cluster(brokers, controllers, mode=mode, timeout_s=timeout_s) as cluster:
            server = ControlServer(Control(cluster))
            try:
                make_private_directory(directory)
                content = msgspec.json.encode(ControlFile.of(server, cluster))
                private_file(path).write_bytes(msgspec.json.format(content))
                where = "" if str(directory) == "." else f" --directory {shlex.quote(str(directory))}"
                how = "as processes" if as_processes else "in memory, in this process"
                click.echo(f"up {how}: {len(cluster.nodes)} nodes; Ctrl-C ends it")
                click.echo(f"for Kafka's clients: bootstrap.servers={cluster.bootstrap_servers}")
                click.echo(f"faults: metaquorum fault{where}, or {server.url} with the token in {path}")
                threading.Event().wait()
            finally:
                path.unlink(missing_ok=True)
                server.close()
    except ClusterError as error:
        raise Failure(str(error)) from error
