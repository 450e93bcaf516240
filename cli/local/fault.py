"""The control port of a test cluster: `local up` serves it until Ctrl-C, and `metaquorum fault` calls it."""

from __future__ import annotations

import http.client
import shlex
import threading
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import click
import msgspec

from metaquorum.cli.errors import Failure
from metaquorum.cli.given import GivenPath
from metaquorum.cli.interrupts import terminated_in_order
from metaquorum.cli.layout import DEFAULT_DIRECTORY, MANIFEST
from metaquorum.cli.text.output import echo_json
from metaquorum.platforms import process_runs
from metaquorum.storage.disk.posix import make_private_directory, private_file

CONTROL_FILE = "control.json"
NO_PROXY = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""The port is of this machine."""
_PATIENCE_S = 120.0


class ControlPort(msgspec.Struct, frozen=True, kw_only=True):
    """What `control.json` says: `metaquorum.testing.control.ControlFile`."""

    url: str
    token: str
    pid: int


def control_file(directory: Path) -> ControlPort:
    """Raises Failure."""
    path = directory / CONTROL_FILE
    start = f"metaquorum local up --in-memory --directory {shlex.quote(str(directory))}"
    if not path.is_file():
        if (directory / MANIFEST).exists():
            raise Failure(
                f"the cluster in {directory} has no control port; start one that has, in another --directory,"
                " with: metaquorum local up --processes (or --in-memory)"
            )
        raise Failure(f"{directory} has no cluster with a control port; start one with: {start}")
    try:
        return msgspec.json.decode(path.read_bytes(), type=ControlPort)
    except msgspec.MsgspecError as error:
        raise Failure(f"{path} is damaged ({error}); remove it, and start the cluster again") from error


@click.command()
@click.argument("method", required=False)
@click.argument("parameters", nargs=-1, metavar="[NAME=VALUE]...")
@click.option(
    "--directory",
    "-d",
    type=GivenPath(readable=False, path_type=Path),
    default=DEFAULT_DIRECTORY,
    show_default=True,
    help="Directory of the cluster.",
)
def fault(method: str | None, parameters: tuple[str, ...], directory: Path) -> None:
    """Break and watch a cluster on this machine; move its time.

    For a cluster of `metaquorum local up --in-memory` or `--processes`.

    Prints what METHOD answers, as JSON; without METHOD, the table of all methods. A fault is answered with
    its number, and `heal fault=NUMBER` ends it.
    """
    port = control_file(directory)
    if method is None:
        click.echo(_asked(directory, port, "/", None), nl=False)
        return
    given: dict[str, str] = {}
    for word in parameters:
        name, equals, value = word.partition("=")
        if not equals or name in given:
            raise click.UsageError(f"{word!r}: write each parameter once, as NAME=VALUE")
        given[name] = value
    path = f"/{urllib.parse.quote(method, safe='')}"
    echo_json(msgspec.json.decode(_asked(directory, port, path, given)))


def _asked(directory: Path, port: ControlPort, path: str, given: dict[str, str] | None) -> Any:
    body = None if given is None else urllib.parse.urlencode(given).encode()
    headers = {"Authorization": f"Bearer {port.token}"}
    request = urllib.request.Request(port.url + path, data=body, headers=headers)
    try:
        with NO_PROXY.open(request, timeout=_PATIENCE_S) as answer:
            return answer.read().decode()
    except urllib.error.HTTPError as error:
        try:
            text = msgspec.json.decode(error.read())["error"]
        except (msgspec.MsgspecError, KeyError, TypeError):
            text = f"the control port answered {error.code}"
        raise Failure(text) from error
    except (OSError, http.client.HTTPException) as error:
        raise Failure(
            f"the cluster of {directory / CONTROL_FILE} does not answer ({error}); start it again with"
            f" metaquorum local up --in-memory, or --processes, and --directory {shlex.quote(str(directory))}"
        ) from error


def serve_cluster(
    directory: Path, brokers: int, controllers: int | None, timeout_s: float, *, as_processes: bool
) -> None:
    """Runs until Ctrl-C or SIGTERM. Raises Failure."""
    from metaquorum.testing.cluster import Cluster  # which `fault` does not need
    from metaquorum.testing.control import Control, ControlFile, ControlServer
    from metaquorum.testing.errors import ClusterError
    from metaquorum.testing.running import IN_PROCESS, PROCESSES

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
