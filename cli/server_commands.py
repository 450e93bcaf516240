"""`metaquorum controller|broker|node run` (a server in the foreground), and `status` of the first two.

Owns nothing but the command line. Does not configure, start or stop servers: they do it themselves.
"""

from __future__ import annotations

import click

from metaquorum.cli.client import ClientOptions, client_options
from metaquorum.cli.errors import EXIT_FAILED
from metaquorum.cli.text.broker_status import status_json, status_text
from metaquorum.cli.text.nodes import node_json, node_text
from metaquorum.cli.text.output import echo_json, json_option

CONFIG = click.Path(path_type=str)


@click.group()
def controller() -> None:
    """Run a controller; show the status of controllers."""


@controller.command("run")
@click.argument("config", type=CONFIG)
def run_controller(config: str) -> int:
    """Run a controller until SIGTERM or Ctrl-C. CONFIG is its configuration file."""
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
    from metaquorum.combined.process import run

    return run(config)


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
