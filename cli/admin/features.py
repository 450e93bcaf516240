"""`metaquorum features`: shows feature levels and changes them."""

from __future__ import annotations

import click

from metaquorum.cli.cluster import ClusterOptions, also_controllers, cluster_options
from metaquorum.cli.text.output import echo_json, json_option
from metaquorum.cli.text.settings import feature_line, pairs, report
from metaquorum.clients.admin.cluster import describe_features, update_features
from metaquorum.metadata.features import (
    METADATA_VERSION,
    MIN_METADATA_VERSION,
    metadata_version_name,
    parse_metadata_version,
)
from metaquorum.metadata.requests.settings import FeatureUpdate, LevelChange


@click.group()
def features() -> None:
    """Describe, upgrade and downgrade feature levels."""


@features.command()
@cluster_options
@also_controllers
@json_option
def describe(options: ClusterOptions, as_json: bool) -> None:
    """Show each feature with its supported and finalized levels."""
    with options.open() as cluster:
        offset, described = cluster.call(describe_features)
    if as_json:
        echo_json(
            [
                {
                    "name": feature.name,
                    "minLevel": feature.min_level,
                    "maxLevel": feature.max_level,
                    "finalizedLevel": feature.finalized_level,
                    "finalizedName": metadata_version_name(max(feature.finalized_level, MIN_METADATA_VERSION))
                    if feature.name == METADATA_VERSION
                    else None,
                    "offset": offset,
                }
                for feature in described
            ]
        )
        return
    for feature in described:
        click.echo(feature_line(feature, offset))


@features.command()
@cluster_options
@also_controllers
@click.argument("levels", nargs=-1, required=True, metavar="FEATURE=LEVEL...")
@click.option("--validate-only", is_flag=True, help="Validate the request without applying it.")
@json_option
def upgrade(options: ClusterOptions, levels: tuple[str, ...], validate_only: bool, as_json: bool) -> int:
    """Upgrade features. LEVEL is a number, or for metadata.version a release such as 3.7."""
    return _update(options, levels, LevelChange.UPGRADE, validate_only, as_json)


@features.command()
@cluster_options
@also_controllers
@click.argument("levels", nargs=-1, required=True, metavar="FEATURE=LEVEL...")
@click.option(
    "--unsafe",
    is_flag=True,
    help="Downgrade even if metadata would be lost. Not supported yet, as in Kafka.",
)
@click.option("--validate-only", is_flag=True, help="Validate the request without applying it.")
@json_option
def downgrade(
    options: ClusterOptions, levels: tuple[str, ...], unsafe: bool, validate_only: bool, as_json: bool
) -> int:
    """Downgrade features to a LEVEL if no metadata is lost."""
    change = LevelChange.UNSAFE_DOWNGRADE if unsafe else LevelChange.SAFE_DOWNGRADE
    return _update(options, levels, change, validate_only, as_json)


def _update(
    options: ClusterOptions, levels: tuple[str, ...], change: LevelChange, validate_only: bool, as_json: bool
) -> int:
    updates = [
        FeatureUpdate(name=name, level=_level(name, text), change=change)
        for name, text in pairs(levels, "level of a feature")
    ]
    with options.open() as cluster:
        results = cluster.call(lambda client: update_features(client, updates, validate_only=validate_only))
    done = "can be finalized" if validate_only else "finalized"
    titles = {each.name: _title(each.name, each.level) for each in updates}
    return report(results, lambda one: f"{done} at {titles.get(one.subject, '?')}", as_json)


def _title(name: str, level: int) -> str:
    return metadata_version_name(level) if name == METADATA_VERSION else str(level)


def _level(name: str, text: str) -> int:
    try:
        return parse_metadata_version(text) if name == METADATA_VERSION else int(text)
    except ValueError as error:
        raise click.UsageError(f"{name}={text}: {error}") from error
