"""`metaquorum log salvage`: ranks what is left of a quorum without its majority, and makes a new one."""

from __future__ import annotations

import random
import time
from typing import Any

import click

from metaquorum.cli.errors import Failure, print_problem
from metaquorum.cli.log.input.options import PATH
from metaquorum.cli.log.input.source import open_paths
from metaquorum.cli.log.repair import refuse_inside
from metaquorum.cli.text.output import echo_json, echo_table, table_options, utc_text
from metaquorum.lines import one_line
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.inspect.log.quorum import voter_set_texts
from metaquorum.metadata.inspect.repair.log_copy import node_files
from metaquorum.metadata.inspect.repair.salvage import (
    NewVoter,
    Ranking,
    Survivor,
    examine,
    rank,
    what_is_missing,
    write_voters,
)
from metaquorum.metadata.inspect.timeline.event_groups import count
from metaquorum.metadata.text.addresses import address_text
from metaquorum.storage.uuids import random_uuid, uuid_to_text


@click.command()
@click.argument("paths", nargs=-1, required=True, type=PATH, metavar="PATH...")
@click.option("--to", "target", type=PATH, help="Output directory; gets one subdirectory per new voter.")
@click.option(
    "--voters", metavar="ID@HOST:PORT,...", help="The new voter set. A directory id may follow each port."
)
@click.option(
    "--kraft-version",
    metavar="N",
    type=click.IntRange(0, 1),
    help="1: the log gets the new voters as its last record (KIP-853). Default: that of the old quorum.",
)
@click.option("--cluster-id", metavar="ID", help="The cluster id, if no survivor's meta.properties has it.")
@table_options
def salvage(
    paths: tuple[str, ...],
    target: str | None,
    voters: str | None,
    kraft_version: int | None,
    cluster_id: str | None,
    as_json: bool,
) -> int:
    """Rank the surviving logs of a quorum; write new voters from them. Reports what may be missing.

    Each PATH is the directory of a surviving node. Brokers count too: they follow the same log. Without
    --voters and --to, nothing is written. Stop every node first; the old controllers must never run again.
    """
    if (target is None) != (voters is None):
        raise click.UsageError(
            "give both --voters ID@HOST:PORT,... and --to DIRECTORY, or neither to only rank the logs"
        )
    ranking = rank([examine(node_files(log)) for log in open_paths(paths)])
    missing = what_is_missing(ranking)
    new = _new_voters(voters) if voters is not None else []
    version = _version(ranking, kraft_version, new)
    image: MetadataImage | None = None
    homes: list[str] = []
    if target is not None:
        for one in ranking.survivors:
            refuse_inside(target, one.files.home, one.files.log.directory)
        homes = [f"{target.rstrip('/')}/controller-{voter.node_id}" for voter in new]
        image = write_voters(
            ranking,
            new,
            homes,
            _cluster(ranking, cluster_id),
            kraft_version=version,
            now_ms=time.time_ns() // 1_000_000,
        )
    if as_json:
        echo_json({**_json(ranking, missing, homes), "kraftVersion": version, **_values(new, version)})
        return 0
    _show_ranking(ranking, missing)
    if image is not None:
        _show_written(ranking, homes, image)
        for key, value in _values(new, version).items():
            if value is not None:
                click.echo(f"  {_KEYS[key]}={value}")
        _show_next()
    return 0


_KEYS = {
    "controllerQuorumVoters": "controller.quorum.voters",
    "controllerQuorumBootstrapServers": "controller.quorum.bootstrap.servers",
}
"""Configuration keys of every node, by their names in JSON."""


def _values(voters: list[NewVoter], version: int) -> dict[str, str | None]:
    """The values of these keys. Static voters are in the configuration, dynamic ones in the log."""
    servers = ",".join(f"{address_text(one.host, one.port)}" for one in voters)
    return {
        "controllerQuorumVoters": voters_line(voters) if voters and not version else None,
        "controllerQuorumBootstrapServers": servers if voters and version else None,
    }


def _version(ranking: Ranking, given: int | None, new: list[NewVoter]) -> int:
    """The kraft.version of the new quorum. Raises Failure for one that the log does not allow."""
    old = ranking.best.quorum.kraft_version
    if given is not None and given < old:
        raise Failure(
            f"the log is at kraft.version {old}, which cannot be lowered; leave out --kraft-version {given}"
        )
    taken = {voter.voter_directory_id for voter in ranking.voter_set}
    for new_voter in new:
        if new_voter.directory_id in taken:
            raise Failure(
                f"--voters gives voter {new_voter.node_id} the directory id of an old voter,"
                f" {uuid_to_text(new_voter.directory_id)}; leave it out, and the new directory gets its own"
            )
    return old if given is None else given


def _new_voters(text: str) -> list[NewVoter]:
    from metaquorum.config.addresses import parse_voters
    from metaquorum.errors import ConfigError

    try:
        parsed = parse_voters([part.strip() for part in text.split(",")], "--voters")
    except ConfigError as error:
        raise Failure(one_line(error)) from error
    rng = random.SystemRandom()
    return [
        NewVoter(
            node_id=voter.node_id,
            host=voter.host,
            port=voter.port,
            directory_id=voter.directory_id or random_uuid(rng),
        )
        for voter in parsed
    ]


def _cluster(ranking: Ranking, given: str | None) -> str:
    known = ranking.cluster_id
    if known is not None and given is not None and given != known:
        raise Failure(f"the directories belong to cluster {known}, not {given}; leave out --cluster-id")
    cluster = known or given
    if cluster is None:
        raise Failure("no meta.properties has the cluster id; give --cluster-id")
    return cluster


def voters_line(voters: list[NewVoter]) -> str:
    """The value of controller.quorum.voters, with directory ids."""
    return ",".join(
        f"{one.node_id}@{address_text(one.host, one.port)}:{uuid_to_text(one.directory_id)}" for one in voters
    )


def _show_ranking(ranking: Ranking, missing: list[str]) -> None:
    rows = [
        (
            rank,
            survivor.node_id,
            _role(ranking, survivor),
            survivor.end.epoch,
            survivor.end.offset,
            utc_text(survivor.time_ms) if survivor.time_ms >= 0 else None,
            survivor.files.home,
        )
        for rank, survivor in enumerate(ranking.survivors, 1)
    ]
    echo_table(("RANK", "NODE", "ROLE", "EPOCH", "END", "NEWEST RECORD", "DIRECTORY"), rows)
    for line in ranking.warnings:
        print_problem(line)
    click.echo("may be missing:")
    for line in missing:
        click.echo(f"  {line}")


def _role(ranking: Ranking, survivor: Survivor) -> str:
    if not ranking.voters:
        return "unknown"
    return "voter" if ranking.is_voter(survivor) else "observer"


def _show_written(ranking: Ranking, homes: list[str], image: MetadataImage) -> None:
    best = ranking.best
    click.echo(
        f"wrote the log of {best.files.home}, up to offset {best.end.offset - 1}: "
        f"{count(len(image.brokers), 'broker')}, {count(len(image.topics), 'topic')}, "
        f"{count(image.topics.partition_count, 'partition')}; elections begin after epoch "
        f"{ranking.first_epoch}"
    )
    for home in homes:
        click.echo(f"  {home}")
    click.echo("add this to the configuration of every controller and every broker, then start them:")


def _show_next() -> None:
    click.echo("never start the old controllers again")
    click.echo(
        "if a broker's metadata log is longer than this one, or was not repaired, remove its "
        "__cluster_metadata-0; the broker then fetches this log"
    )


def _json(ranking: Ranking, missing: list[str], homes: list[str]) -> dict[str, Any]:
    return {
        "survivors": [
            {
                "path": survivor.files.home,
                "nodeId": survivor.node_id,
                "role": _role(ranking, survivor),
                "endEpoch": survivor.end.epoch,
                "endOffset": survivor.end.offset,
                "newestRecordTime": survivor.time_ms,
                "highestEpoch": survivor.epoch,
            }
            for survivor in ranking.survivors
        ],
        "voters": list(ranking.voters),
        "cluster": ranking.cluster_id,
        "majority": ranking.has_majority,
        "warnings": ranking.warnings,
        "missing": missing,
        "voterSet": voter_set_texts(ranking.voter_set),
        "directories": homes,
    }
