"""`metaquorum configs`: configurations of topics, brokers, broker loggers, client metrics and groups."""

from __future__ import annotations

import click

from metaquorum.cli.cluster import ClusterOptions, OpenCluster, also_controllers, cluster_options
from metaquorum.cli.errors import EXIT_FAILED
from metaquorum.cli.text.output import echo_json, json_option
from metaquorum.cli.text.settings import config_line, pairs, refuse, report
from metaquorum.clients.admin.configs import (
    DescribedConfig,
    alter_configs,
    configured_names,
    describe_configs,
)
from metaquorum.clients.admin.topics import list_topics
from metaquorum.metadata.image import (
    BROKER_LOGGER_RESOURCE,
    BROKER_RESOURCE,
    CLIENT_METRICS_RESOURCE,
    GROUP_RESOURCE,
    TOPIC_RESOURCE,
    ConfigResource,
)
from metaquorum.metadata.requests.settings import ConfigChange, ConfigOp, OpKind

_TYPES = {
    "topic": TOPIC_RESOURCE,
    "broker": BROKER_RESOURCE,
    "broker-logger": BROKER_LOGGER_RESOURCE,
    "client-metrics": CLIENT_METRICS_RESOURCE,
    "group": GROUP_RESOURCE,
}
_TITLES = {number: name for name, number in _TYPES.items()}
DEFAULT_NAME = "default"

resource_type = click.argument("kind", metavar="TYPE", type=click.Choice(list(_TYPES)))


@click.group()
def configs() -> None:
    """Describe and change configurations.

    TYPE is topic, broker, broker-logger, client-metrics or group. The broker name `default` means all
    brokers.
    For broker-logger, NAME is a broker id; levels (FATAL to TRACE) last until that broker stops.
    """


def _resource(kind: str, name: str) -> ConfigResource:
    broker_default = kind == "broker" and name == DEFAULT_NAME
    return ConfigResource(_TYPES[kind], "" if broker_default else name)


@configs.command()
@cluster_options
@also_controllers
@resource_type
@click.argument("names", nargs=-1, metavar="[NAME...]")
@click.option(
    "--all", "all_keys", is_flag=True, help="Include keys that are not set, with the value in effect."
)
@json_option
def describe(
    options: ClusterOptions, kind: str, names: tuple[str, ...], all_keys: bool, as_json: bool
) -> int:
    """Show configurations with the source of each value. Without NAME, of all topics or brokers, or of all
    resources of another type that have any."""
    if options.controllers is not None and not names:
        raise click.UsageError("controllers do not list what has configurations: give NAME")
    with options.open() as cluster:
        wanted = [_resource(kind, name) for name in names or _all_names(cluster, kind)]
        described = cluster.call(lambda client: describe_configs(client, wanted, all_keys=all_keys))
    for config in described:
        if as_json:
            echo_json(_json(config))
        elif config.error is not None:
            refuse(_title(config.resource), config.error.code, config.error.message)
        else:
            click.echo(_heading(config.resource, all_keys))
            for entry in config.entries:
                click.echo(config_line(entry))
    return EXIT_FAILED if any(each.error is not None for each in described) else 0


def _all_names(cluster: OpenCluster, kind: str) -> list[str]:
    match kind:
        case "topic":
            return [topic.name for topic in cluster.call(list_topics)]
        case "broker" | "broker-logger":
            running = list(map(str, cluster.call(lambda client: client.brokers())))
            return [*running, DEFAULT_NAME] if kind == "broker" else running
        case _:
            return cluster.call(lambda client: configured_names(client, _TYPES[kind]))


def _title(resource: ConfigResource) -> str:
    return f"{_TITLES.get(resource.resource_type, 'resource')} {resource.name or DEFAULT_NAME}"


def _heading(resource: ConfigResource, all_keys: bool) -> str:
    if resource.resource_type == BROKER_RESOURCE and not resource.name:
        return "Default configs for brokers in the cluster are:"
    kind = _TITLES[resource.resource_type]
    return f"{'All' if all_keys else 'Dynamic'} configs for {kind} {resource.name} are:"


def _json(described: DescribedConfig) -> dict[str, object]:
    error = described.error
    return {
        "type": _TITLES.get(described.resource.resource_type),
        "name": described.resource.name or DEFAULT_NAME,
        "error": "NONE" if error is None else error.code.name,
        "message": None if error is None else error.message,
        "configs": [
            {
                "name": entry.name,
                "value": entry.value,
                "source": entry.source.name,
                "sensitive": entry.sensitive,
                "note": entry.note,
                "synonyms": [
                    {"source": each.source.name, "name": each.name, "value": each.value}
                    for each in entry.synonyms
                ],
            }
            for entry in described.entries
        ],
    }


@configs.command()
@cluster_options
@also_controllers
@resource_type
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="Set a key.")
@click.option("--delete", "deletes", multiple=True, metavar="KEY", help="Reset a key to its default.")
@click.option("--append", "appends", multiple=True, metavar="KEY=PART,...", help="Append values to a list.")
@click.option(
    "--subtract", "subtracts", multiple=True, metavar="KEY=PART,...", help="Remove values from a list."
)
@click.option("--validate-only", is_flag=True, help="Validate the request without applying it.")
@json_option
def alter(
    options: ClusterOptions,
    kind: str,
    names: tuple[str, ...],
    sets: tuple[str, ...],
    deletes: tuple[str, ...],
    appends: tuple[str, ...],
    subtracts: tuple[str, ...],
    validate_only: bool,
    as_json: bool,
) -> int:
    """Change configurations. Other keys keep their values."""
    ops = tuple(
        [ConfigOp(kind=OpKind.SET, name=key, value=value) for key, value in pairs(sets, "setting")]
        + [ConfigOp(kind=OpKind.DELETE, name=key) for key in deletes]
        + [ConfigOp(kind=OpKind.APPEND, name=key, value=value) for key, value in pairs(appends, "addition")]
        + [ConfigOp(kind=OpKind.SUBTRACT, name=key, value=value) for key, value in pairs(subtracts, "part")]
    )
    if not ops:
        raise click.UsageError("there is nothing to change; give --set, --delete, --append or --subtract")
    changes = [ConfigChange(resource=_resource(kind, name), ops=ops) for name in names]
    with options.open() as cluster:
        results = cluster.call(lambda client: alter_configs(client, changes, validate_only=validate_only))
    return report(results, "can be applied" if validate_only else "applied", as_json)
