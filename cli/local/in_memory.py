"""`metaquorum local up --in-memory`: a test cluster in this process, until Ctrl-C, with a control port."""

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


def serve_in_memory(directory: Path, brokers: int, controllers: int | None, timeout_s: float) -> None:
    """Runs until Ctrl-C or SIGTERM. Raises Failure."""
    path = directory / CONTROL_FILE
    if (directory / MANIFEST).exists():
        raise Failure(f"{directory} holds a cluster of processes; give another --directory")
    if path.exists() and process_runs(control_file(directory).pid):
        raise Failure(f"{path} says that a cluster runs in memory; end it, or give another --directory")
    try:
        with terminated_in_order(), Cluster(brokers, controllers, timeout_s=timeout_s) as cluster:
            server = ControlServer(Control(cluster))
            try:
                make_private_directory(directory)
                content = msgspec.json.encode(ControlFile.of(server, cluster))
                private_file(path).write_bytes(msgspec.json.format(content))
                where = "" if str(directory) == "." else f" --directory {shlex.quote(str(directory))}"
                click.echo(f"up in memory, in this process: {len(cluster.nodes)} nodes; Ctrl-C ends it")
                click.echo(f"for Kafka's clients: bootstrap.servers={cluster.bootstrap_servers}")
                click.echo(f"faults: metaquorum fault{where}, or {server.url} with the token in {path}")
                threading.Event().wait()
            finally:
                path.unlink(missing_ok=True)
                server.close()
    except ClusterError as error:
        raise Failure(str(error)) from error
