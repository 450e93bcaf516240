"""`metaquorum quorum`: the leader, the log ends of the nodes, leadership transfer and voter changes."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from msgspec import structs

from metaquorum.cli.admin.voter_changes import (
    ByGrpc,
    ByKafka,
    ChangesVoters,
    Ordered,
    VoterChanger,
    VoterWish,
    plan_json,
    plan_lines,
)
from metaquorum.cli.client import ClientOptions, TlsOptions, client_options
from metaquorum.cli.cluster import ClusterOptions, cluster_options, controllers_option
from metaquorum.cli.errors import print_problem
from metaquorum.cli.given import FiniteRange, GivenPath
from metaquorum.cli.text.output import echo_json, json_option
from metaquorum.cli.text.quorum import replication_json, replication_text, status_json, status_text
from metaquorum.clients.admin.cluster import describe_quorum
from metaquorum.clients.search import Address, ClientError, parse_bootstrap
from metaquorum.lines import one_line
from metaquorum.storage.uuids import uuid_from_text

F = TypeVar("F", bound=Callable[..., Any])


def _directory(_context: click.Context, _parameter: click.Parameter, text: str | None) -> bytes | None:
    try:
        return None if text is None else uuid_from_text(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def _address(_context: click.Context, _parameter: click.Parameter, text: str | None) -> Address | None:
    if text is None:
        return None
    try:
        addresses = parse_bootstrap(text)
    except ClientError as error:
        raise click.BadParameter(one_line(error)) from error
    if len(addresses) > 1:
        raise click.BadParameter("give one address")
    return addresses[0]


node_id = click.argument("node_id", metavar="ID", type=click.IntRange(min=0))
dry_run = click.option(
    "--dry-run",
    is_flag=True,
    help="Show the steps, the majority that each needs, and the live voters. Change nothing.",
)
force = click.option(
    "--force", is_flag=True, help="Continue even if no live majority remains; nothing can be committed then."
)
wait = click.option(
    "--wait",
    "wait_s",
    metavar="SECONDS",
    type=FiniteRange(min=0.1),
    default=300.0,
    show_default=True,
    help="Time limit in seconds for the whole command. Run it again to continue.",
)
endpoint = click.option(
    "--endpoint",
    metavar="HOST:PORT",
    callback=_address,
    help="Address of the new voter. Over gRPC it names its listeners itself. Default: the registered one.",
)


def login(command: F) -> F:
    """Adds --command-config to `options`. Must be below `client_options`."""

    @click.option(
        "--command-config",
        type=GivenPath(path_type=Path),
        help="Properties of a Kafka client, for controllers' listeners of Kafka's protocol.",
    )
    @functools.wraps(command)
    def wrapped(*args: Any, options: ClientOptions, command_config: Path | None, **more: Any) -> Any:
        if command_config is not None and options.tls != TlsOptions():
            raise click.UsageError("give the TLS files either in --command-config or as options")
        return command(*args, options=structs.replace(options, command_config=command_config), **more)

    return wrapped  # type: ignore[return-value]


def directory_option(whose: str) -> Callable[[F], F]:
    return click.option(
        "--directory-id",
        metavar="UUID",
        callback=_directory,
        help=f"Directory id of {whose}. Default: looked up.",
    )


@click.command("add-voter")
@client_options
@login
@node_id
@directory_option("the new voter")
@endpoint
@dry_run
@force
@wait
@json_option
def add_voter(
    options: ClientOptions,
    node_id: int,
    directory_id: bytes | None,
    endpoint: Address | None,
    dry_run: bool,
    force: bool,
    wait_s: float,
    as_json: bool,
) -> None:
    """Make an observing controller a voter. Waits until it has caught up."""
    wish = VoterWish(add_id=node_id, directory_id=directory_id, force=force)
    ordered = Ordered(wish=wish, endpoint=endpoint, wait_s=wait_s)
    _run(options, ordered, dry_run=dry_run, as_json=as_json)


@click.command("remove-voter")
@client_options
@login
@node_id
@directory_option("the voter")
@dry_run
@force
@wait
@json_option
def remove_voter(
    options: ClientOptions,
    node_id: int,
    directory_id: bytes | None,
    dry_run: bool,
    force: bool,
    wait_s: float,
    as_json: bool,
) -> None:
    """Make a voter an observer. A leader hands over when its removal is committed."""
    wish = VoterWish(remove_id=node_id, directory_id=directory_id, force=force)
    ordered = Ordered(wish=wish, wait_s=wait_s)
    _run(options, ordered, dry_run=dry_run, as_json=as_json)


@click.command("replace-voter")
@client_options
@login
@node_id
@click.option(
    "--with",
    "new_id",
    metavar="ID",
    type=click.IntRange(min=0),
    help="Node id of the new voter. Default: the same id, with another directory.",
)
@directory_option("the new voter")
@endpoint
@dry_run
@force
@wait
@json_option
def replace_voter(
    options: ClientOptions,
    node_id: int,
    new_id: int | None,
    directory_id: bytes | None,
    endpoint: Address | None,
    dry_run: bool,
    force: bool,
    wait_s: float,
    as_json: bool,
) -> None:
    """Replace a voter with another directory or another id. The new voter catches up first.

    With the same id, the old directory is removed first; with another id, the new voter is added first."""
    wish = VoterWish(
        add_id=node_id if new_id is None else new_id,
        remove_id=node_id,
        directory_id=directory_id,
        force=force,
    )
    ordered = Ordered(wish=wish, endpoint=endpoint, wait_s=wait_s)
    _run(options, ordered, dry_run=dry_run, as_json=as_json)


def _run(options: ClientOptions, ordered: Ordered, *, dry_run: bool, as_json: bool) -> None:
    with contextlib.ExitStack() as stack:
        cluster = _cluster(options, stack)
        changer = VoterChanger(cluster, ordered, lambda line: click.echo(line, err=as_json))
        plan = changer.plan()
        if not as_json and (dry_run or not plan.steps):
            for line in plan_lines(plan):
                click.echo(line)
        if not dry_run:
            changer.perform(plan)
        if as_json:
            echo_json({**plan_json(plan), "dryRun": dry_run})


def _cluster(options: ClientOptions, stack: contextlib.ExitStack) -> ChangesVoters:
    """The controllers, in the protocol that the named ones speak; those of the local cluster over gRPC."""
    if options.bootstrap is not None:
        asked = ClusterOptions(
            bootstrap=None,
            timeout_s=options.timeout_s,
            tls=options.tls,
            command_config=options.command_config,
            controllers=options.bootstrap,
        ).settled_or_failed()
        if asked.by_kafka:
            return ByKafka(stack.enter_context(asked.open()))
        options = structs.replace(options, spent_s=asked.spent_s)
    return ByGrpc(stack.enter_context(options.open()), options)


@click.group()
def quorum() -> None:
    """Describe the quorum; transfer leadership; change voters."""


for _command in (add_voter, remove_voter, replace_voter):
    quorum.add_command(_command)


@quorum.command()
@cluster_options
@controllers_option
@click.option("--replication", is_flag=True, help="Show every voter and observer instead of the summary.")
@click.option("--human-readable", is_flag=True, help="With --replication: show times as 'N ms ago'.")
@json_option
def describe(
    options: ClusterOptions,
    controllers: ClientOptions | None,
    replication: bool,
    human_readable: bool,
    as_json: bool,
) -> None:
    """Describe the quorum, as the active controller knows it."""
    if controllers is None:
        with options.open() as cluster:
            status = cluster.call(describe_quorum)
    else:
        with controllers.open() as quorum_client:
            status = quorum_client.quorum()
    now_ms = time.time_ns() // 1_000_000
    if as_json:
        echo_json(replication_json(status, now_ms) if replication else status_json(status, now_ms))
    elif replication:
        click.echo(replication_text(status, now_ms, human_readable))
        for loss in status.losses:
            print_problem(loss)
    else:
        click.echo(status_text(status, now_ms))


@quorum.command()
@client_options
@click.option(
    "--to",
    "target",
    metavar="ID",
    type=click.IntRange(min=0),
    help="Voter to elect. Default: the most caught-up voter.",
)
@json_option
def transfer(options: ClientOptions, target: int | None, as_json: bool) -> None:
    """Transfer leadership to another voter. Waits until that voter leads."""
    with options.open() as cluster:
        before = cluster.quorum()
        cluster.transfer(target)
        after = cluster.wait_for_new_leader(before.leader_epoch)
    if as_json:
        echo_json({"from": before.leader_id, "to": after.leader_id, "leaderEpoch": after.leader_epoch})
    else:
        click.echo(
            f"controller {after.leader_id} leads in epoch {after.leader_epoch} (before: {before.leader_id})"
        )
