"""`metaquorum controller run`, `metaquorum broker run` (a server in the foreground), and `status` of both.

Owns nothing but the command line; the servers configure, start and end themselves.
"""

from __future__ import annotations

import click

from cli.broker_status_text import status_json, status_text
from cli.client import ClientOptions, client_options
from cli.errors import EXIT_FAILED
from cli.node_text import node_json, node_text
from cli.output import echo_json, json_option

CONFIG = click.Path(path_type=str)


@click.group()
def controller() -> None:
    """Run a controller, or ask controllers how they are."""


@controller.command("run")
@click.argument("config", type=CONFIG)
def run_controller(config: str) -> int:
    """Run the controller that the file CONFIG describes, until SIGTERM or Ctrl-C."""
    from controller.server.main import run

    return run(config)


@controller.command()
@client_options
@json_option
def status(options: ClientOptions, as_json: bool) -> int:
    """Print what each controller knows of itself, whether or not it leads; exit code 1 if one is silent."""
    answers = options.nodes()
    if as_json:
        echo_json([node_json(answer) for answer in answers])
    else:
        click.echo("\n\n".join(node_text(answer) for answer in answers))
    return EXIT_FAILED if any(answer.report is None for answer in answers) else 0


@click.group()
def broker() -> None:
    """Run a broker, or ask brokers how they are."""


@broker.command("run")
@click.argument("config", type=CONFIG)
@click.option("--node-id", type=click.IntRange(min=0), help="The broker's id, if CONFIG leaves it out.")
def run_broker(config: str, node_id: int | None) -> int:
    """Run the broker that the file CONFIG describes, until SIGTERM or Ctrl-C."""
    from broker.server.main import run

    return run(config, node_id)


@broker.command("status")
@client_options
@click.argument("addresses", nargs=-1, metavar="[HOST:PORT...]")
@json_option
def broker_status(options: ClientOptions, addresses: tuple[str, ...], as_json: bool) -> int:
    """Print what each broker knows of itself; exit code 1 if one is silent.

    Without HOST:PORT the controllers are asked for the registered brokers, and these at their first listener.
    """
    answers = options.broker_nodes(addresses)
    if as_json:
        echo_json([status_json(answer) for answer in answers])
    else:
        click.echo("\n\n".join(status_text(answer) for answer in answers) or "no broker is registered")
    return EXIT_FAILED if any(answer.status is None for answer in answers) else 0
