"""`metaquorum quotas`: describes and changes client quotas of users, client ids and addresses."""

from __future__ import annotations

from collections.abc import Callable
from types import EllipsisType
from typing import Any, TypeVar

import click

from metaquorum.cli.cluster import ClusterOptions, also_controllers, cluster_options
from metaquorum.cli.text.output import echo_json, json_option
from metaquorum.cli.text.settings import pairs, quota_line, report
from metaquorum.clients.admin.access import alter_quotas, describe_quotas
from metaquorum.metadata.requests.settings import QuotaChange, QuotaOp
from metaquorum.metadata.settings.quotas import CLIENT_ID, IP, USER, QuotaFilter

F = TypeVar("F", bound=Callable[..., Any])
Words = dict[str, str | bool | None]

_KINDS = (USER, CLIENT_ID, IP)


def _entity_options(command: F) -> F:
    """For each entity type, an option for a name and one for the default."""
    for kind in reversed(_KINDS):
        command = click.option(f"--{kind}-default", is_flag=True, help=f"The default for every {kind}.")(
            command
        )
        command = click.option(f"--{kind}", metavar="NAME", help=f"One {kind}.")(command)
    return command


def _entity(words: Words) -> tuple[tuple[str, str | None], ...]:
    parts: list[tuple[str, str | None]] = []
    for kind in _KINDS:
        key = kind.replace("-", "_")
        name, default = words[key], words[f"{key}_default"]
        if name is not None and default:
            raise click.UsageError(f"give --{kind} or --{kind}-default, not both")
        if default:
            parts.append((kind, None))
        elif name is not None:
            parts.append((kind, str(name)))
    return tuple(parts)


@click.group()
def quotas() -> None:
    """Change and describe client quotas."""


@quotas.command()
@cluster_options
@also_controllers
@_entity_options
@click.option("--set", "sets", multiple=True, metavar="KEY=NUMBER", help="Set a quota.")
@click.option("--delete", "deletes", multiple=True, metavar="KEY", help="Remove a quota.")
@click.option("--validate-only", is_flag=True, help="Validate the request without applying it.")
@json_option
def alter(
    options: ClusterOptions,
    sets: tuple[str, ...],
    deletes: tuple[str, ...],
    validate_only: bool,
    as_json: bool,
    **words: str | bool | None,
) -> int:
    """Change the quotas of a user, a client-id, both together, or an ip."""
    entity = _entity(words)
    if not entity:
        raise click.UsageError("give an entity: --user, --client-id or --ip, or a default")
    ops = [QuotaOp(key=key, value=_value(key, text)) for key, text in pairs(sets, "quota")]
    ops += [QuotaOp(key=key, value=None) for key in deletes]
    if not ops:
        raise click.UsageError("there is nothing to change; give --set or --delete")
    change = QuotaChange(entity=entity, ops=tuple(ops))
    with options.open() as cluster:
        result = cluster.call(lambda client: alter_quotas(client, change, validate_only=validate_only))
    return report([result], "can be applied" if validate_only else "applied", as_json)


def _value(key: str, text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise click.UsageError(f"{key}={text} is not a number") from error


@quotas.command()
@cluster_options
@also_controllers
@_entity_options
@click.option("--any-user", is_flag=True, help="Every entity with a user.")
@click.option("--any-client-id", is_flag=True, help="Every entity with a client-id.")
@click.option("--any-ip", is_flag=True, help="Every entity with an ip.")
@click.option("--strict", is_flag=True, help="Only entities of exactly these types.")
@json_option
def describe(options: ClusterOptions, strict: bool, as_json: bool, **words: str | bool | None) -> None:
    """Show quotas. Default: all."""
    parts: list[tuple[str, str | EllipsisType | None]] = list(_entity(words))
    for kind in _KINDS:
        if words[f"any_{kind.replace('-', '_')}"]:
            if any(named == kind for named, _ in parts):
                raise click.UsageError(f"give --any-{kind} or one {kind}, not both")
            parts.append((kind, ...))
    wanted = QuotaFilter(parts=tuple(parts), strict=strict)
    with options.open() as cluster:
        described = cluster.call(lambda client: describe_quotas(client, wanted))
    if as_json:
        echo_json([{"entity": dict(entity), "quotas": dict(values)} for entity, values in described])
        return
    for entity, values in described:
        click.echo(quota_line(entity, values))
