"""`metaquorum controller|broker|node`: run a server, show its status, and start one in a container.

What a server needs is only imported when one is run.
"""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click
import javaproperties
from click.core import ParameterSource

from metaquorum.cli.__main__ import OWNER_LINE
from metaquorum.cli.client import ClientOptions, client_options
from metaquorum.cli.errors import EXIT_FAILED, Failure
from metaquorum.cli.formatted import existing_cluster_id
from metaquorum.cli.given import GivenPath
from metaquorum.cli.text.nodes import node_json, node_text, status_json, status_text
from metaquorum.cli.text.output import echo_json, json_option
from metaquorum.errors import ConfigError
from metaquorum.platforms import check_nodes_run_here

if TYPE_CHECKING:
    from metaquorum.config.node import NodeConfig


DATA = "/var/lib/metaquorum/data"
NEVER = "never"
_HEALTH_MS = 3_000

_config = click.argument("config", type=GivenPath(path_type=Path), required=False, envvar="METAQUORUM_CONFIG")
_data = click.option(
    "--data",
    type=GivenPath(path_type=Path),
    default=DATA,
    show_default=True,
    envvar="METAQUORUM_DATA",
    help="Directory for what the node stores, unless log.dirs is set.",
)


@click.command()
@_config
@_data
@click.option(
    "--format",
    "when",
    type=click.Choice(["first", NEVER]),
    default="first",
    show_default=True,
    envvar="METAQUORUM_FORMAT",
    help="Whether to format directories that are not formatted.",
)
def start(config: Path | None, data: Path, when: str) -> int:
    """Format a node if it is not formatted, and run it.

    CONFIG and environment variables configure it. KAFKA_NODE_ID sets node.id (`_` is a dot, `__` an
    underscore, `___` a dash), also over CONFIG; CLUSTER_ID is the id to format with. Without any
    configuration it is one node that is a whole cluster.
    """
    from metaquorum.combined.process import run
    from metaquorum.config.files import is_a_cluster_alone

    pairs = _pairs(config, data, os.environ)
    with tempfile.TemporaryDirectory(prefix="metaquorum-") as scratch:
        path = _written(Path(scratch), pairs)
        if when != NEVER:
            _format(path, os.environ.get("CLUSTER_ID") or None, alone=is_a_cluster_alone(pairs))
        return run(str(path))


@click.command()
@_config
@_data
def health(config: Path | None, data: Path) -> int:
    """Check whether the node of `node start` serves.

    Takes the same configuration. Exit code 1 if it does not serve: a controller is asked by the gRPC
    health service, a broker's first listener must accept a connection.
    """
    import asyncio

    from metaquorum.config.load import load_config

    with tempfile.TemporaryDirectory(prefix="metaquorum-") as scratch:
        node = load_config(_written(Path(scratch), _pairs(config, data, os.environ)))
        problem = asyncio.run(_problem(node))
    click.echo(problem or "serves")
    return EXIT_FAILED if problem else 0


async def _problem(node: NodeConfig) -> str:
    """Why the node does not serve; empty if it does."""
    import asyncio

    from metaquorum.network.tls import NodeTls
    from metaquorum.rpc.health import health_problem

    for listener in node.grpc_listeners[:1]:
        address = (listener.host or "127.0.0.1", listener.port)
        return await health_problem(address, timeout_ms=_HEALTH_MS, tls=NodeTls(node).of(listener.name))
    listener = node.kafka_listeners[0]
    host = "127.0.0.1" if not listener.host or listener.leads_nowhere else listener.host
    try:
        async with asyncio.timeout(_HEALTH_MS / 1000):
            _, writer = await asyncio.open_connection(host, listener.port)
    except (OSError, TimeoutError) as error:
        return f"{listener.name} {host}:{listener.port} accepts no connection: {error or 'no answer in time'}"
    writer.close()
    return ""


def _format(path: Path, cluster_id: str | None, *, alone: bool) -> None:
    """Formats the directories that are not formatted, if there are any. Raises Failure."""
    from metaquorum.cli.admin.storage import format_
    from metaquorum.cli.format_options import read_node_config
    from metaquorum.storage.uuids import random_uuid, uuid_to_text

    node = read_node_config(str(path))
    known = [existing_cluster_id(Path(each)) for each in node.directories]
    if all(known):
        return
    chosen = next((each for each in known if each), None)
    if chosen is None and cluster_id is None:
        if not alone:
            raise Failure(
                "CLUSTER_ID is not set, and nothing is formatted: set it to the same id on every node "
                "(metaquorum storage random-uuid prints one)"
            )
        cluster_id = uuid_to_text(random_uuid(random.SystemRandom()))
    dynamic = node.is_controller and not node.has_static_voters
    if format_.callback is None:
        raise AssertionError("a command has a function")
    format_.callback(
        config=str(path),
        cluster_id=cluster_id or chosen,
        directories=(),
        node_id=None,
        directory_ids=(),
        new_cluster=False,
        standalone=dynamic and alone,
        initial_controllers=None,
        no_initial_controllers=dynamic and not alone,
        release_version=None,
        features=(),
        scram=(),
        ignore_formatted=True,
        as_json=False,
    )


def _pairs(config: Path | None, data: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """What configures the node. A container names CONFIG in its environment, with or without such a file; one
    on the command line must be there."""
    from metaquorum.config.files import merged, read_properties

    source = click.get_current_context().get_parameter_source("config")
    if config is None or (source is ParameterSource.ENVIRONMENT and not config.exists()):
        return merged({}, environment, str(data))
    try:
        file = read_properties(config)
    except ConfigError as error:
        raise ConfigError(f"{config}: {error}") from error
    return merged(file, environment, str(data))


def _written(folder: Path, pairs: Mapping[str, str]) -> Path:
    """The configuration as a file that only this user can read."""
    path = folder / "node.properties"
    path.touch(mode=0o600)
    path.write_text(javaproperties.dumps(dict(pairs), timestamp=False), encoding="utf-8")
    return path


CONFIG = GivenPath(path_type=str)


def _run_owned(config: str) -> int:
    """Runs a node of a test cluster."""
    from metaquorum.testing.owned_node import run

    return run(config, os.environ.pop(OWNER_LINE))


@click.group()
def controller() -> None:
    """Run a controller; show the status of controllers."""


@controller.command("run")
@click.argument("config", type=CONFIG)
def run_controller(config: str) -> int:
    """Run a controller until SIGTERM or Ctrl-C. CONFIG is its configuration file."""
    check_nodes_run_here()
    if OWNER_LINE in os.environ:
        return _run_owned(config)
    from metaquorum.controller.server.main import run

    return run(config)


@controller.command()
@client_options
@json_option
def status(options: ClientOptions, as_json: bool) -> int:
    """Show the status of each controller, active or not. Exit code 1 if one does not answer."""
    answers = options.nodes()
    if as_json:
        echo_json([node_json(answer) for answer in answers])
    else:
        click.echo("\n\n".join(node_text(answer) for answer in answers))
    return EXIT_FAILED if any(answer.report is None for answer in answers) else 0


@click.group()
def node() -> None:
    """Run a node that is a controller, a broker, or both."""


@node.command("run")
@click.argument("config", type=CONFIG)
def run_node(config: str) -> int:
    """Run a node until SIGTERM or Ctrl-C. CONFIG gives its roles in process.roles."""
    check_nodes_run_here()
    if OWNER_LINE in os.environ:
        return _run_owned(config)
    from metaquorum.combined.process import run

    return run(config)


node.add_command(start)
node.add_command(health)


@click.group()
def broker() -> None:
    """Run a broker; show the status of brokers."""


@broker.command("run")
@click.argument("config", type=CONFIG)
@click.option(
    "--node-id", metavar="ID", type=click.IntRange(min=0), help="The broker id, if CONFIG does not set it."
)
def run_broker(config: str, node_id: int | None) -> int:
    """Run a broker until SIGTERM or Ctrl-C. CONFIG is its configuration file."""
    check_nodes_run_here()
    if OWNER_LINE in os.environ:
        return _run_owned(config)
    from metaquorum.broker.server.main import run

    return run(config, node_id)


@broker.command("status")
@client_options
@click.argument("addresses", nargs=-1, metavar="[HOST:PORT...]")
@json_option
def broker_status(options: ClientOptions, addresses: tuple[str, ...], as_json: bool) -> int:
    """Show the status of each broker. Exit code 1 if one does not answer.

    Without HOST:PORT, asks the controllers for the registered brokers and connects to the first listener of
    each.
    """
    answers = options.broker_nodes(addresses)
    if as_json:
        echo_json([status_json(answer) for answer in answers])
    else:
        click.echo("\n\n".join(status_text(answer) for answer in answers) or "no broker is registered")
    return EXIT_FAILED if any(answer.status is None for answer in answers) else 0
