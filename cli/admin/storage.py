"""`metaquorum storage`: formats directories, shows their identity, draws ids.

Servers must not format (KIP-631): if they formatted empty directories by themselves, a majority of emptied
disks could elect a leader without the committed records.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import click

from metaquorum.cli.errors import EXIT_FAILED, Failure, print_problem
from metaquorum.cli.format import (
    DEFAULT_RELEASE,
    DYNAMIC_RELEASE,
    FormatPlan,
    FormatResult,
    apply_plan,
    level_of_release,
)
from metaquorum.cli.format_options import (
    ConfiguredNode,
    VoterOptions,
    check_voter_options,
    first_voters,
    read_node_config,
)
from metaquorum.cli.given import GivenPath
from metaquorum.cli.layout import identity_of
from metaquorum.cli.text.output import echo_json, echo_table, json_option, table_options
from metaquorum.metadata.features import KNOWN_FEATURES, KRAFT_VERSION, LEVEL_DIRECTORIES, METADATA_VERSION
from metaquorum.metadata.records.control import Voter
from metaquorum.metadata.settings.keys import whole_number
from metaquorum.metadata.text.addresses import address_text
from metaquorum.storage.files.meta_properties import is_drawn_cluster_id
from metaquorum.storage.uuids import random_uuid as draw_uuid
from metaquorum.storage.uuids import uuid_to_text

_PROBE_S = 1.0
"""How long to look for a running quorum of the same voters, in seconds."""

CONFIG_PATH = GivenPath(path_type=str)


@click.group()
def storage() -> None:
    """Format storage directories and show their identity."""


@storage.command("format")
@click.option(
    "--config", "-c", type=CONFIG_PATH, help="Configuration file of the node; gives its id and directories."
)
@click.option("--cluster-id", "-t", metavar="ID", required=True, help="Cluster id, the same on every node.")
@click.option(
    "--directory",
    "-d",
    "directories",
    metavar="PATH",
    multiple=True,
    help="Directory, instead of --config; may be repeated.",
)
@click.option("--node-id", metavar="ID", type=click.IntRange(min=0), help="Node id, instead of --config.")
@click.option(
    "--directory-id",
    "directory_ids",
    metavar="ID",
    multiple=True,
    help="Id of each --directory. Default: random.",
)
@click.option(
    "--new-cluster",
    is_flag=True,
    help=(
        "Take this voter's directory id from controller.quorum.voters. Use only before the first start "
        "of a cluster."
    ),
)
@click.option(
    "--standalone",
    "-s",
    is_flag=True,
    help="Make this controller the only voter of a new cluster with dynamic voters.",
)
@click.option(
    "--initial-controllers",
    "-I",
    metavar="ID@HOST:PORT:DIRECTORY-ID,...",
    help="The first voters of a new cluster with dynamic voters; the same on every node.",
)
@click.option(
    "--no-initial-controllers",
    "-N",
    is_flag=True,
    help="Write no voter set: this node joins a cluster with dynamic voters.",
)
@click.option(
    "--release-version",
    "-r",
    metavar="RELEASE",
    help=f"metadata.version, and the other features as Kafka's release has them. Default: {DEFAULT_RELEASE}, "
    f"or {DYNAMIC_RELEASE} with dynamic voters.",
)
@click.option(
    "--feature",
    "-f",
    "features",
    multiple=True,
    metavar="NAME=LEVEL",
    help="Level of another feature; may be repeated.",
)
@click.option(
    "--add-scram",
    "-S",
    "scram",
    multiple=True,
    metavar="'MECHANISM=[name=NAME,password=PASSWORD]'",
    help="SCRAM credential to create; may be repeated. More keys: iterations, salt, saltedpassword.",
)
@click.option("--ignore-formatted", "-g", is_flag=True, help="Skip directories that are already formatted.")
@json_option
def format_(  # noqa: PLR0913
    config: str | None,
    cluster_id: str,
    directories: tuple[str, ...],
    node_id: int | None,
    directory_ids: tuple[str, ...],
    new_cluster: bool,
    standalone: bool,
    initial_controllers: str | None,
    no_initial_controllers: bool,
    release_version: str | None,
    features: tuple[str, ...],
    scram: tuple[str, ...],
    ignore_formatted: bool,
    as_json: bool,
) -> None:
    """Format the directories of a node. Writes its identity (meta.properties) and the bootstrap records."""
    node = _node(config, directories, node_id)
    levels = _features(features)
    options = VoterOptions(
        standalone=standalone,
        initial_controllers=initial_controllers,
        no_initial_controllers=no_initial_controllers,
    )
    check_voter_options(options, node, levels.items())
    if new_cluster:
        if options.given is not None:
            raise click.UsageError(f"--new-cluster is for static voters; leave it out with {options.given}")
        directory_ids = _voter_directory_ids(node, directory_ids)
    if directory_ids and len(directory_ids) != len(node.directories):
        raise Failure(
            f"{len(directory_ids)} --directory-id for {len(node.directories)} directories; give one each"
        )
    voters = first_voters(options, node, directory_ids[node.metadata_index] if directory_ids else None)
    if voters:
        _refuse_second_start(node, voters)
    release = release_version or (DEFAULT_RELEASE if options.given is None else DYNAMIC_RELEASE)
    results = apply_plan(
        FormatPlan(
            directories=node.directories,
            cluster_id=cluster_id,
            node_id=node.node_id,
            directory_ids=directory_ids or None,
            release=release,
            features={**levels, KRAFT_VERSION: 1} if voters else levels,
            ignore_formatted=ignore_formatted,
            voters=voters,
            scram=scram,
            metadata_index=node.metadata_index,
        )
    )
    for result in results:
        _show_result(result, release, as_json=as_json)
    _remark(node, cluster_id, release, results)
    _warn_of_other_id(node, results)


def _remark(node: ConfiguredNode, cluster_id: str, release: str, results: Sequence[FormatResult]) -> None:
    """What a new cluster should know: about its id, and about several directories at its level."""
    if not any(result.written for result in results):
        return
    if len(node.directories) > 1 and level_of_release(release) < LEVEL_DIRECTORIES:
        print_problem(
            "below metadata.version 3.7-IV2, a broker stops when one of its log directories"
            " fails: the log cannot say which replicas are lost"
        )
    if not is_drawn_cluster_id(cluster_id):
        print_problem(
            f"the cluster id {cluster_id} is not a uuid: for a new cluster, draw one with"
            " metaquorum storage random-uuid"
        )


def _show_result(result: FormatResult, release: str, *, as_json: bool) -> None:
    id_text = uuid_to_text(result.directory_id) if result.directory_id else None
    if as_json:
        echo_json(
            {
                "directory": result.directory,
                "directoryId": id_text,
                "written": result.written,
                "voters": list(result.voters),
            }
        )
    elif result.written:
        voters = ", ".join(map(str, result.voters))
        more = f", first voters {voters} (kraft.version 1)" if voters else ""
        click.echo(f"formatted {result.directory} at {release}, directory id {id_text}{more}")
    else:
        click.echo(f"{result.directory} is already formatted and stays unchanged, directory id {id_text}")


def _warn_of_other_id(node: ConfiguredNode, results: Sequence[FormatResult]) -> None:
    """Warns if the static voters pin another directory id for this node."""
    wanted = node.voter_directory_id
    ids = [uuid_to_text(result.directory_id) for result in results if result.directory_id]
    if wanted is not None and ids and wanted not in ids:
        print_problem(
            f"node {node.node_id} is a voter with directory id {wanted}, which is not "
            f"{ids[0]}: it will only observe, not vote; for a cluster that never started, format with "
            "--new-cluster"
        )


def _node(config: str | None, directories: tuple[str, ...], node_id: int | None) -> ConfiguredNode:
    if config is not None:
        if directories or node_id is not None:
            raise click.UsageError("give either --config, or --directory with --node-id, not both")
        found = read_node_config(config)
        for line in found.warnings:
            print_problem(f"{config}: {line}")
        return found
    if not directories or node_id is None:
        raise click.UsageError("give --config FILE, or --directory with --node-id")
    return ConfiguredNode(node_id=node_id, directories=directories, voter_directory_id=None)


def _voter_directory_ids(node: ConfiguredNode, given: tuple[str, ...]) -> tuple[str, ...]:
    """The directory ids: the metadata directory's as the voter list pins it, random ones for the others."""
    if given:
        raise click.UsageError("give either --new-cluster or --directory-id, not both")
    if node.voter_directory_id is None:
        raise Failure(
            f"controller.quorum.voters pins no directory id for node {node.node_id};"
            " leave out --new-cluster, or write the voter as id@host:port:directory-id"
        )
    _refuse_if_running(node, node.other_voters, "format without --new-cluster")
    rng = random.SystemRandom()
    others = [uuid_to_text(draw_uuid(rng)) for _ in node.directories]
    others[node.metadata_index] = node.voter_directory_id
    return tuple(others)


def _refuse_second_start(node: ConfiguredNode, voters: Sequence[Voter]) -> None:
    """Raises Failure if the quorum already runs. A first voter set is for a new cluster: a voter
    with an emptied disk would get its old identity back, and another node would form another
    cluster with the same id."""
    listed = {
        address_text(at.host, at.port)
        for voter in voters
        if voter.voter_id != node.node_id
        for at in voter.endpoints
    }
    others = tuple(sorted(listed | set(node.other_voters)))
    _refuse_if_running(node, others, "format with --no-initial-controllers and let it join")


def _refuse_if_running(node: ConfiguredNode, others: tuple[str, ...], advice: str) -> None:
    """Raises Failure if the quorum already runs. A voter that lost its directory must not get its old
    identity back: it may have voted, and it acknowledged records that it no longer has."""
    from metaquorum.cli.client import ClusterClient, TlsOptions
    from metaquorum.metadata.errors import ApiError

    if not others:
        return
    tls = TlsOptions(keystore=node.keystore, truststore=node.truststore)
    with ClusterClient(",".join(others), timeout_s=_PROBE_S, tls=tls) as cluster:
        try:
            quorum = cluster.quorum()
        except (ApiError, Failure):
            return
    raise Failure(
        f"the cluster is already running (controller {quorum.leader_id} leads in epoch "
        f"{quorum.leader_epoch}); {advice}: reusing the old directory id could lose committed records"
    )


def _features(pairs: tuple[str, ...]) -> dict[str, int]:
    features = {}
    for pair in pairs:
        name, equals, level = pair.partition("=")
        number = whole_number(level, 0x7FFF)
        if not equals or not name or number is None:
            raise click.UsageError(f"--feature {pair!r} is not NAME=LEVEL, such as transaction.version=1")
        if name == METADATA_VERSION:
            raise click.UsageError("set metadata.version with --release-version")
        features[name] = _known_level(name, number)
    return features


def _known_level(name: str, level: int) -> int:
    """The level if this release supports it. A broker that lacks a finalized level cannot register, so a
    cluster at an unsupported level would stay empty."""
    feature = next((each for each in KNOWN_FEATURES if each.name == name), None)
    if feature is None:
        known = ", ".join(each.name for each in KNOWN_FEATURES if each.name != METADATA_VERSION)
        raise Failure(f"--feature {name}: there is no such feature; choose one of {known}")
    if not feature.min_level <= level <= feature.max_level:
        raise Failure(
            f"--feature {name}={level}: this release supports levels {feature.min_level} to "
            f"{feature.max_level}"
        )
    return level


@storage.command()
@click.option("--config", "-c", type=CONFIG_PATH, help="Configuration file of the node.")
@click.option(
    "--directory",
    "-d",
    "directories",
    metavar="PATH",
    multiple=True,
    help="Directory, instead of --config; may be repeated.",
)
@table_options
def info(config: str | None, directories: tuple[str, ...], as_json: bool) -> int:
    """Show which node and cluster directories belong to. Exit code 1 if one is unformatted or unreadable."""
    if config is not None:
        directories = (*read_node_config(config).directories, *directories)
    if not directories:
        raise click.UsageError("give --config FILE or --directory")
    identities = [identity_of(directory) for directory in directories]
    rows = []
    for directory, identity, problem in identities:
        directory_id = uuid_to_text(identity.directory_id) if identity and identity.directory_id else None
        rows.append(
            {
                "directory": directory,
                "version": identity.version if identity else None,
                "clusterId": identity.cluster_id if identity else None,
                "nodeId": identity.node_id if identity else None,
                "directoryId": directory_id,
                "problem": problem,
            }
        )
    clusters = {identity.cluster_id for _, identity, _ in identities if identity}
    if as_json:
        echo_json(rows)
    else:
        columns = ("DIRECTORY", "VERSION", "CLUSTER", "NODE", "DIRECTORY ID", "PROBLEM")
        echo_table(columns, [list(row.values()) for row in rows])
    if len(clusters) > 1:
        raise Failure(
            f"the directories belong to different clusters ({', '.join(sorted(map(str, clusters)))})"
        )
    return EXIT_FAILED if any(problem for _, _, problem in identities) else 0


@storage.command("random-uuid")
def random_uuid() -> None:
    """Print a random id for a cluster or a directory."""
    click.echo(uuid_to_text(draw_uuid(random.SystemRandom())))
