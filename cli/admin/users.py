"""`metaquorum users`: sets, deletes and lists SCRAM credentials.

Passwords are read from a prompt or standard input, never from an argument, and never printed. They never
leave this process: what leaves it is salted.
"""

from __future__ import annotations

import getpass
import sys
import warnings

import click

from metaquorum.cli.cluster import ClusterOptions, also_controllers, cluster_options
from metaquorum.cli.text.output import echo_json, json_option
from metaquorum.cli.text.settings import report, user_line
from metaquorum.clients.admin.access import delete_scram, describe_users, set_scram
from metaquorum.metadata.settings.scram import DEFAULT_ITERATIONS, MAX_ITERATIONS, MIN_ITERATIONS, Mechanism

_TITLES = {each.title: each for each in Mechanism}
mechanism_option = click.option(
    "--mechanism",
    type=click.Choice(list(_TITLES), case_sensitive=False),
    default=Mechanism.SCRAM_SHA_512.title,
    show_default=True,
    help="Mechanism of the credential.",
)


@click.group()
def users() -> None:
    """Set, delete and list SCRAM credentials."""


@users.group()
def scram() -> None:
    """Manage SCRAM credentials (RFC 5802)."""


@scram.command("set")
@cluster_options
@also_controllers
@click.argument("user")
@mechanism_option
@click.option(
    "--iterations",
    metavar="N",
    type=click.IntRange(MIN_ITERATIONS, MAX_ITERATIONS),
    default=DEFAULT_ITERATIONS,
    show_default=True,
    help="Number of hash iterations.",
)
@click.option("--password-stdin", is_flag=True, help="Read the password from one line of standard input.")
@json_option
def set_(
    options: ClusterOptions, user: str, mechanism: str, iterations: int, password_stdin: bool, as_json: bool
) -> int:
    """Set the password of USER. The cluster stores what RFC 5802 derives from it, never the password."""
    password = sys.stdin.readline().rstrip("\r\n") if password_stdin else _prompted()
    if not password:
        raise click.UsageError("the password is empty")
    chosen = _TITLES[mechanism.upper()]
    with options.open() as cluster:
        result = cluster.call(lambda client: set_scram(client, user, chosen, password, iterations=iterations))
    return report([result], f"{chosen.title} set", as_json)


def _prompted() -> str:
    """A password that a person typed twice. Raises UsageError if the input ends first."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", getpass.GetPassWarning)
            return str(click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True))
    except click.Abort as error:
        if not isinstance(error.__context__, EOFError):
            raise
        click.echo(err=True)
        raise click.UsageError(
            "standard input ended before there was a password; --password-stdin reads it from one line"
        ) from None


@scram.command()
@cluster_options
@also_controllers
@click.argument("user")
@mechanism_option
@json_option
def delete(options: ClusterOptions, user: str, mechanism: str, as_json: bool) -> int:
    """Delete the credential of USER for a mechanism."""
    chosen = _TITLES[mechanism.upper()]
    with options.open() as cluster:
        result = cluster.call(lambda client: delete_scram(client, user, chosen))
    return report([result], f"{chosen.title} deleted", as_json)


@scram.command("list")
@cluster_options
@also_controllers
@click.argument("names", nargs=-1, metavar="[USER...]")
@json_option
def list_(options: ClusterOptions, names: tuple[str, ...], as_json: bool) -> None:
    """List users with their mechanisms and iterations, never with secrets."""
    with options.open() as cluster:
        described = cluster.call(lambda client: describe_users(client, names))
    if as_json:
        echo_json(
            [
                {
                    "user": user.user,
                    "credentials": [
                        {"mechanism": mechanism.title, "iterations": count}
                        for mechanism, count in user.iterations
                    ],
                }
                for user in described
            ]
        )
        return
    for each in described:
        click.echo(user_line(each))
