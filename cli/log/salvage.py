"""`metaquorum log salvage`: what is left of a quorum that lost its majority, and a new quorum made of it.

Owns options and output; the ranking and the writing are in `metadata.inspect.repair.salvage`. The survivors'
directories are only read.
"""

from __future__ import annotations

import random
from typing import Any

import click

from metaquorum.cli.errors import Failure, one_line
from metaquorum.cli.log.input.options import PATH
from metaquorum.cli.log.input.source import open_paths
from metaquorum.cli.log.repair import refuse_inside
from metaquorum.cli.text.output import echo_json, echo_table, table_options, utc_text
from metaquorum.metadata.image import MetadataImage
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
from metaquorum.storage.uuids import random_uuid, uuid_to_text


@click.command()
@click.argument("paths", nargs=-1, required=True, type=PATH, metavar="PATH...")
@click.option("--to", "target", type=PATH, help="Output directory; gets one subdirectory per new voter.")
@click.option(
    "--voters", metavar="ID@HOST:PORT,...", help="The new voter set. A directory id may follow each port."
)
@click.option("--cluster-id", help="The cluster id, if no survivor's meta.properties has it.")
@table_options
def salvage(
    paths: tuple[str, ...], target: str | None, voters: str | None, cluster_id: str | None, as_json: bool
) -> int:
    """Rank the surviving logs of a quorum, say what may be missing, and write directories for new voters.

    Each PATH is the directory of a surviving node. Brokers count too: they follow the same log. Without
    --voters and --to, nothing is written. Stop every node first; the old controllers must never run again.
    """
    if (target is None) != (voters is None):
        raise click.UsageError(
            "give both --voters ID@HOST:PORT,... and --to DIRECTORY, or neither to look only"
        )
    ranking = rank([examine(node_files(log)) for log in open_paths(paths)])
    missing = what_is_missing(ranking)
    new = _new_voters(voters) if voters is not None else []
    image: MetadataImage | None = None
    homes: list[str] = []
    if target is not None:
        for one in ranking.survivors:
            refuse_inside(target, one.files.home, one.files.log.directory)
        homes = [f"{target.rstrip('/')}/controller-{voter.node_id}" for voter in new]
        image = write_voters(ranking, new, homes, _cluster(ranking, cluster_id))
    if as_json:
        echo_json(_json(ranking, missing, new, homes))
        return 0
    _show_ranking(ranking, missing)
    if image is not None:
        _show_written(ranking, new, homes, image)
    return 0


def _new_voters(text: str) -> list[NewVoter]:
    from metaquorum.runtime.config.addresses import parse_voters
    from metaquorum.runtime.errors import ConfigError

    try:
        parsed = parse_voters(tuple(part.strip() for part in text.split(",")))
    except ConfigError as error:
        reason = one_line(error).replace("controller.quorum.voters", "--voters")
        raise Failure(reason) from error
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
    """The value of controller.quorum.voters, directory ids pinned."""
    return ",".join(
        f"{one.node_id}@{f'[{one.host}]' if ':' in one.host else one.host}:{one.port}"
        f":{uuid_to_text(one.directory_id)}"
        for one in voters
    )


def _show_ranking(ranking: Ranking, missing: list[str]) -> None:
    rows = [
        (
            place,
            one.node_id,
            _role(ranking, one),
            one.end.epoch,
            one.end.offset,
            utc_text(one.time_ms) if one.time_ms >= 0 else None,
            one.files.home,
        )
        for place, one in enumerate(ranking.survivors, 1)
    ]
    echo_table(("RANK", "NODE", "ROLE", "EPOCH", "END", "NEWEST RECORD", "DIRECTORY"), rows)
    for line in ranking.warnings:
        click.echo(f"metaquorum: {line}", err=True)
    click.echo("may be missing:")
    for line in missing:
        click.echo(f"  {line}")


def _role(ranking: Ranking, one: Survivor) -> str:
    if not ranking.voters:
        return "unknown"
    return "voter" if one.node_id in ranking.voters else "observer"


def _show_written(ranking: Ranking, voters: list[NewVoter], homes: list[str], image: MetadataImage) -> None:
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
    click.echo(f"  controller.quorum.voters={voters_line(voters)}")
    click.echo("never start the old controllers again")
    click.echo(
        "if a broker's metadata log is longer than this one, or was not repaired, remove its "
        "__cluster_metadata-0; the broker then fetches this log"
    )


def _json(ranking: Ranking, missing: list[str], voters: list[NewVoter], homes: list[str]) -> dict[str, Any]:
    return {
        "survivors": [
            {
                "path": one.files.home,
                "nodeId": one.node_id,
                "role": _role(ranking, one),
                "endEpoch": one.end.epoch,
                "endOffset": one.end.offset,
                "newestRecordTime": one.time_ms,
                "highestEpoch": one.epoch,
            }
            for one in ranking.survivors
        ],
        "voters": list(ranking.voters),
        "cluster": ranking.cluster_id,
        "majority": ranking.has_majority,
        "warnings": ranking.warnings,
        "missing": missing,
        "directories": homes,
        "controllerQuorumVoters": voters_line(voters) if voters else None,
    }
