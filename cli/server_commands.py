"""`metaquorum controller run` and `metaquorum broker run`: one server process in the foreground.

Owns nothing but the command line; the servers configure, start and end themselves.
"""

from __future__ import annotations

import click

CONFIG = click.Path(path_type=str)


@click.group()
def controller() -> None:
    """Run a controller."""


@controller.command("run")
@click.argument("config", type=CONFIG)
def run_controller(config: str) -> int:
    """Run the controller that the file CONFIG describes, until SIGTERM or Ctrl-C."""
    from controller.server.main import run

    return run(config)


@click.group()
def broker() -> None:
    """Run a broker."""


@broker.command("run")
@click.argument("config", type=CONFIG)
@click.option("--node-id", type=click.IntRange(min=0), help="The broker's id, if CONFIG leaves it out.")
def run_broker(config: str, node_id: int | None) -> int:
    """Run the broker that the file CONFIG describes, until SIGTERM or Ctrl-C."""
    from broker.server.main import run

    return run(config, node_id)
