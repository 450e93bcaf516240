"""`metaquorum partitions`: elects leaders, adds partitions and moves replicas.

Owns elections and the growth of topics. Knows no plans: the commands that move replicas are in
`reassignments`.
"""

from __future__ import annotations

import click

from metaquorum.cli.admin.reassignments import plan, reassign, reassignments
from metaquorum.cli.admin.topics import parse_assignment, report_topics
from metaquorum.cli.cluster import ClusterOptions, cluster_options
from metaquorum.cli.errors import EXIT_FAILED
from metaquorum.cli.text.output import echo_json, json_option
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.requests.partitions import ElectionResult, TopicGrowth
from metaquorum.runtime.kafka.admin.cluster import elect_leaders
from metaquorum.runtime.kafka.admin.topics import create_partitions, look_up_topics


@click.group()
def partitions() -> None:
    """Elect leaders, add partitions, move replicas."""


for _command in (plan, reassign, reassignments):
    partitions.add_command(_command)


@partitions.command()
@cluster_options
@click.option(
    "--election",
    type=click.Choice(["preferred", "unclean"]),
    required=True,
    help=(
        "preferred: the first replica. unclean: any live replica, which loses records that only others have."
    ),
)
@click.option("--topic", metavar="NAME", help="The topic; all of its partitions unless --partition is given.")
@click.option(
    "--partition",
    "indexes",
    metavar="N",
    type=click.IntRange(min=0),
    multiple=True,
    help="One partition of --topic.",
)
@click.option("--all", "everywhere", is_flag=True, help="Every partition that needs this election.")
@json_option
def elect(
    options: ClusterOptions,
    election: str,
    topic: str | None,
    indexes: tuple[int, ...],
    everywhere: bool,
    as_json: bool,
) -> int:
    """Elect leaders. Select the partitions of one topic, or all that need it."""
    if everywhere == (topic is not None):
        raise click.UsageError("give either --all, or --topic with or without --partition")
    if indexes and topic is None:
        raise click.UsageError("--partition needs --topic")
    with options.open() as cluster:
        chosen: list[tuple[str, int]] | None = None
        if topic is not None and indexes:
            chosen = [(topic, index) for index in indexes]
        elif topic is not None:
            found = cluster.call(lambda client: look_up_topics(client, [topic]))
            chosen = [(topic, each.index) for one in found for each in one.partitions] or [(topic, 0)]
        results = cluster.call(
            lambda client: elect_leaders(client, unclean=election == "unclean", partitions=chosen)
        )
    return _report(results, as_json)


def _report(results: tuple[ElectionResult, ...], as_json: bool) -> int:
    """One line per partition, refusals on standard error. Nothing to elect is not a failure."""
    failed = False
    if as_json:
        echo_json(
            [
                {
                    "topic": each.topic,
                    "partition": each.partition,
                    "leader": each.leader,
                    "error": each.error.name,
                    "message": each.message,
                }
                for each in results
            ]
        )
    for each in results:
        name = f"{each.topic}-{each.partition}"
        refused = each.error not in {ErrorCode.NONE, ErrorCode.ELECTION_NOT_NEEDED}
        failed = failed or refused
        if as_json:
            continue
        if refused:
            click.echo(f"metaquorum: {name}: {each.error.name}: {each.message or 'refused'}", err=True)
        elif each.error is ErrorCode.NONE:
            click.echo(f"{name}: leader {each.leader}")
        else:
            click.echo(f"{name}: {each.message}")
    if not results and not as_json:
        click.echo("nothing to do: no partition needs this election")
    return EXIT_FAILED if failed else 0


@partitions.command()
@cluster_options
@click.argument("topic")
@click.option(
    "--count", metavar="N", type=click.IntRange(min=1), required=True, help="New total number of partitions."
)
@click.option(
    "--replica-assignment",
    metavar="0:1,1:2",
    help="Brokers of each added partition, preferred leader first.",
)
@click.option("--validate-only", is_flag=True, help="Validate the request without applying it.")
@json_option
def add(
    options: ClusterOptions,
    topic: str,
    count: int,
    replica_assignment: str | None,
    validate_only: bool,
    as_json: bool,
) -> int:
    """Add partitions to TOPIC until it has --count."""
    assignments = None if replica_assignment is None else parse_assignment(replica_assignment)
    wanted = TopicGrowth(name=topic, count=count, assignments=assignments)
    with options.open() as cluster:
        results = cluster.call(
            lambda client: create_partitions(client, [wanted], validate_only=validate_only)
        )
    done = f"can have {count} partitions" if validate_only else f"has {count} partitions"
    return report_topics(results, done, as_json)
