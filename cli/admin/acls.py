"""`metaquorum acls`: adds, lists and removes access control entries."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any, TypeVar

import click

from metaquorum.cli.cluster import ClusterOptions, also_controllers, cluster_options
from metaquorum.cli.errors import EXIT_FAILED
from metaquorum.cli.text.output import echo_json, json_option
from metaquorum.cli.text.settings import acl_entry, acl_text, refuse, report
from metaquorum.clients.admin.access import create_acls, delete_acls, list_acls
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.image import Acl
from metaquorum.metadata.requests.settings import DeletedAcls
from metaquorum.metadata.settings.acls import (
    CLUSTER_NAME,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)

F = TypeVar("F", bound=Callable[..., Any])


def _words(kind: type[IntEnum], *without: str) -> click.Choice[str]:
    names = [each.name.lower().replace("_", "-") for each in kind]
    return click.Choice([name for name in names if name not in without], case_sensitive=False)


def _listed(kind: type[IntEnum], *without: str) -> str:
    return ", ".join(_words(kind, *without).choices)


def _number(kind: type[IntEnum], word: str) -> int:
    return int(kind[word.upper().replace("-", "_")])


def _filter_options(command: F) -> F:
    for option in (
        click.option(
            "--resource-type",
            type=_words(ResourceType),
            default="any",
            show_default=True,
            metavar="TYPE",
            help=f"Type of the resource: {_listed(ResourceType)}.",
        ),
        click.option("--resource-name", metavar="NAME", help="Name of the resource. Default: any."),
        click.option(
            "--pattern-type",
            type=_words(PatternType),
            default="any",
            show_default=True,
            help="match: every entry that applies to the name.",
        ),
        click.option("--principal", metavar="User:NAME", help="Principal of the entry. Default: any."),
        click.option("--host", metavar="ADDRESS", help="Address of the client. Default: any."),
        click.option(
            "--operation",
            type=_words(Operation),
            default="any",
            show_default=True,
            metavar="OPERATION",
            help=f"Operation: {_listed(Operation)}.",
        ),
        click.option(
            "--permission",
            type=_words(Permission),
            default="any",
            show_default=True,
            help="Only entries with this permission.",
        ),
    ):
        command = option(command)
    return command


def _filter(words: dict[str, str | None]) -> AclFilter:
    return AclFilter(
        resource_type=_number(ResourceType, words["resource_type"] or "any"),
        resource_name=words["resource_name"],
        pattern_type=_number(PatternType, words["pattern_type"] or "any"),
        principal=words["principal"],
        host=words["host"],
        operation=_number(Operation, words["operation"] or "any"),
        permission_type=_number(Permission, words["permission"] or "any"),
    )


def _json(acl: Acl) -> dict[str, object]:
    return {
        "resourceType": ResourceType(acl.resource_type).name,
        "resourceName": acl.resource_name,
        "patternType": PatternType(acl.pattern_type).name,
        "principal": acl.principal,
        "host": acl.host,
        "operation": Operation(acl.operation).name,
        "permissionType": Permission(acl.permission_type).name,
    }


@click.group()
def acls() -> None:
    """Add, list and remove access control entries."""


@acls.command()
@cluster_options
@also_controllers
@click.argument("principals", nargs=-1, required=True, metavar="User:NAME...")
@click.option(
    "--resource-type",
    type=_words(ResourceType, "any"),
    required=True,
    metavar="TYPE",
    help=f"Type of the resource: {_listed(ResourceType, 'any')}.",
)
@click.option(
    "--resource-name", metavar="NAME", help="Name of the resource; * means all. Omit it for the cluster."
)
@click.option(
    "--pattern-type",
    type=_words(PatternType, "any", "match"),
    default="literal",
    show_default=True,
    help="prefixed: all names with this prefix.",
)
@click.option(
    "--operation",
    "operations",
    type=_words(Operation, "any"),
    multiple=True,
    default=["all"],
    show_default=True,
    metavar="OPERATION",
    help=f"Operation to allow; may be repeated: {_listed(Operation, 'any')}.",
)
@click.option(
    "--host",
    "hosts",
    multiple=True,
    default=["*"],
    show_default=True,
    metavar="ADDRESS",
    help="Address of the client; may be repeated.",
)
@click.option("--deny", is_flag=True, help="Deny the operations instead of allowing them.")
@json_option
def add(
    options: ClusterOptions,
    principals: tuple[str, ...],
    resource_type: str,
    resource_name: str | None,
    pattern_type: str,
    operations: tuple[str, ...],
    hosts: tuple[str, ...],
    deny: bool,
    as_json: bool,
) -> int:
    """Allow principals to perform operations. Adds one entry per principal, operation and host."""
    if resource_name is None and resource_type != "cluster":
        raise click.UsageError("give --resource-name; * means all")
    wanted = [
        Acl(
            resource_type=_number(ResourceType, resource_type),
            resource_name=resource_name or CLUSTER_NAME,
            pattern_type=_number(PatternType, pattern_type),
            principal=principal,
            host=host,
            operation=_number(Operation, operation),
            permission_type=Permission.DENY if deny else Permission.ALLOW,
        )
        for principal in principals
        for operation in operations
        for host in hosts
    ]
    with options.open() as cluster:
        results = cluster.call(lambda client: create_acls(client, wanted))
    return report(results, "in force", as_json)


@acls.command("list")
@cluster_options
@also_controllers
@_filter_options
@json_option
def list_(options: ClusterOptions, as_json: bool, **words: str | None) -> None:
    """List the entries that match the options. Default: all entries."""
    with options.open() as cluster:
        entries = cluster.call(lambda client: list_acls(client, _filter(words)))
    if as_json:
        echo_json([_json(acl) for acl in entries])
    elif entries:
        click.echo(acl_text(entries))


@acls.command()
@cluster_options
@also_controllers
@_filter_options
@click.option(
    "--all",
    "everything",
    is_flag=True,
    help="Remove every entry. Required when no other option selects entries.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be removed, without removing it.")
@json_option
def remove(
    options: ClusterOptions, everything: bool, dry_run: bool, as_json: bool, **words: str | None
) -> int:
    """Remove every entry that matches the options."""
    wanted = _filter(words)
    if wanted == AclFilter() and not everything:
        raise click.UsageError("no option selects entries; give one, or --all to remove every entry")
    with options.open() as cluster:
        if dry_run:
            result = DeletedAcls(acls=cluster.call(lambda client: list_acls(client, wanted)))
        else:
            result = cluster.call(lambda client: delete_acls(client, wanted))
    if result.error is not ErrorCode.NONE:
        refuse("acls", result.error, result.message)
        return EXIT_FAILED
    if as_json:
        echo_json([_json(acl) for acl in result.acls])
        return 0
    for acl in result.acls:
        resource = f"{ResourceType(acl.resource_type).name} {acl.resource_name}"
        click.echo(f"{'would remove' if dry_run else 'removed'}: {resource} ({acl_entry(acl)})")
    if not result.acls:
        click.echo("no entry matches")
    return 0
