"""`metaquorum controller|broker|node`: run a server, show its status, and start one in a container.

What a server needs is only imported when one is run.
"""

from __future__ import annotations

import os
import random
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import javaproperties
from click.core import ParameterSource
from msgspec.structs import asdict

from metaquorum.cli.__main__ import OWNER_LINE
from metaquorum.cli.client import ClientOptions, client_options
from metaquorum.cli.errors import EXIT_FAILED, Failure
from metaquorum.cli.given import GivenPath
from metaquorum.cli.layout import existing_cluster_id
from metaquorum.cli.text.output import echo_json, json_option
from metaquorum.cli.text.quorum import losses_json
from metaquorum.clients.quorum.nodes import BrokerAnswer, NodeAnswer
from metaquorum.errors import ConfigError
from metaquorum.metadata.requests.status import (
    BrokerControlState,
    BrokerControlStatus,
    BrokerStatus,
    NodeStatus,
)
from metaquorum.metadata.text.addresses import address_text
from metaquorum.platforms import check_nodes_run_here
from metaquorum.rpc.messages.tables import NodeReport
from metaquorum.storage.uuids import uuid_to_text

if TYPE_CHECKING:
    from metaquorum.config.node import NodeConfig

DATA = "/var/lib/metaquorum/data"
NEVER = "never"
_HEALTH_MS = 3_000

_config = click.argument("config", type=GivenPath(path_type=Path), required=False, envvar="METAQUORUM_CONFIG")
_data = click.option(
    "--data",
    type=GivenPath(path_type=Path),
    default=DATA,
    show_default=True,
    envvar="METAQUORUM_DATA",
    help="Directory for what the node stores, unless log.dirs is set.",
)


@click.command()
@_config
@_data
@click.option(
    "--format",
    "when",
    type=click.Choice(["first", NEVER]),
    default="first",
    show_default=True,
    envvar="METAQUORUM_FORMAT",
    help="Whether to format directories that are not formatted.",
)
def start(config: Path | None, data: Path, when: str) -> int:
    """Format a node if it is not formatted, and run it.

    CONFIG and environment variables configure it. KAFKA_NODE_ID sets node.id (`_` is a dot, `__` an
    underscore, `___` a dash), also over CONFIG; CLUSTER_ID is the id to format with. Without any
    configuration it is one node that is a whole cluster.
    """
    from metaquorum.combined.process import run
    from metaquorum.config.files import is_a_cluster_alone

    pairs = _pairs(config, data, os.environ)
    with tempfile.TemporaryDirectory(prefix="metaquorum-") as scratch:
        path = _written(Path(scratch), pairs)
        if when != NEVER:
            _format(path, os.environ.get("CLUSTER_ID") or None, alone=is_a_cluster_alone(pairs))
        return run(str(path))


@click.command()
@_config
@_data
def health(config: Path | None, data: Path) -> int:
    """Check whether the node of `node start` serves.

    Takes the same configuration. Exit code 1 if it does not serve: a controller is asked by the gRPC
    health service, a broker's first listener must accept a connection.
    """
    import asyncio

    from metaquorum.config.load import load_config

    with tempfile.TemporaryDirectory(prefix="metaquorum-") as scratch:
        node = load_config(_written(Path(scratch), _pairs(config, data, os.environ)))
        problem = asyncio.run(_problem(node))
    click.echo(problem or "serves")
    return EXIT_FAILED if problem else 0


async def _problem(node: NodeConfig) -> str:
    """Why the node does not serve; empty if it does."""
    import asyncio

    from metaquorum.network.tls import NodeTls
    from metaquorum.rpc.health import health_problem

    for listener in node.grpc_listeners[:1]:
        address = (listener.host or "127.0.0.1", listener.port)
        return await health_problem(address, timeout_ms=_HEALTH_MS, tls=NodeTls(node).of(listener.name))
    listener = node.kafka_listeners[0]
    host = "127.0.0.1" if not listener.host or listener.leads_nowhere else listener.host
    try:
        async with asyncio.timeout(_HEALTH_MS / 1000):
            _, writer = await asyncio.open_connection(host, listener.port)
    except (OSError, TimeoutError) as error:
        return f"{listener.name} {host}:{listener.port} accepts no connection: {error or 'no answer in time'}"
    writer.close()
    return ""


def _format(path: Path, cluster_id: str | None, *, alone: bool) -> None:
    """Formats the directories that are not formatted, if there are any. Raises Failure."""
    from metaquorum.cli.admin.storage import format_
    from metaquorum.cli.format_options import read_node_config
    from metaquorum.storage.uuids import random_uuid, uuid_to_text

    node = read_node_config(str(path))
    known = [existing_cluster_id(Path(each)) for each in node.directories]
    if all(known):
        return
    chosen = next((each for each in known if each), None)
    if chosen is None and cluster_id is None:
        if not alone:
            raise Failure(
                "CLUSTER_ID is not set, and nothing is formatted: set it to the same id on every node "
                "(metaquorum storage random-uuid prints one)"
            )
        cluster_id = uuid_to_text(random_uuid(random.SystemRandom()))
    dynamic = node.is_controller and not node.has_static_voters
    if format_.callback is None:
        raise AssertionError("a command has a function")
    format_.callback(
        config=str(path),
        cluster_id=cluster_id or chosen,
        directories=(),
        node_id=None,
        directory_ids=(),
        new_cluster=False,
        standalone=dynamic and alone,
        initial_controllers=None,
        no_initial_controllers=dynamic and not alone,
        release_version=None,
        features=(),
        scram=(),
        ignore_formatted=True,
        as_json=False,
    )


def _pairs(config: Path | None, data: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """What configures the node. A container names CONFIG in its environment, with or without such a file; one
    on the command line must be there."""
    from metaquorum.config.files import merged, read_properties

    source = click.get_current_context().get_parameter_source("config")
    if config is None or (source is ParameterSource.ENVIRONMENT and not config.exists()):
        return merged({}, environment, str(data))
    try:
        file = read_properties(config)
    except ConfigError as error:
        raise ConfigError(f"{config}: {error}") from error
    return merged(file, environment, str(data))


def _written(folder: Path, pairs: Mapping[str, str]) -> Path:
    """The configuration as a file that only this user can read."""
    path = folder / "node.properties"
    path.touch(mode=0o600)
    path.write_text(javaproperties.dumps(dict(pairs), timestamp=False), encoding="utf-8")
    return path


CONFIG = GivenPath(path_type=str)


def _run_owned(config: str) -> int:
    """Runs a node of a test cluster."""
    from metaquorum.testing.owned_node import run

    return run(config, os.environ.pop(OWNER_LINE))


@click.group()
def controller() -> None:
    """Run a controller; show the status of controllers."""


@controller.command("run")
@click.argument("config", type=CONFIG)
def run_controller(config: str) -> int:
    """Run a controller until SIGTERM or Ctrl-C. CONFIG is its configuration file."""
    check_nodes_run_here()
    if OWNER_LINE in os.environ:
        return _run_owned(config)
    from metaquorum.controller.server.main import run

    return run(config)


@controller.command()
@client_options
@json_option
def status(options: ClientOptions, as_json: bool) -> int:
    """Show the status of each controller, active or not. Exit code 1 if one does not answer."""
    answers = options.nodes()
    if as_json:
        echo_json([node_json(answer) for answer in answers])
    else:
        click.echo("\n\n".join(node_text(answer) for answer in answers))
    return EXIT_FAILED if any(answer.report is None for answer in answers) else 0


@click.group()
def node() -> None:
    """Run a node that is a controller, a broker, or both."""


@node.command("run")
@click.argument("config", type=CONFIG)
def run_node(config: str) -> int:
    """Run a node until SIGTERM or Ctrl-C. CONFIG gives its roles in process.roles."""
    check_nodes_run_here()
    if OWNER_LINE in os.environ:
        return _run_owned(config)
    from metaquorum.combined.process import run

    return run(config)


node.add_command(start)
node.add_command(health)


@click.group()
def broker() -> None:
    """Run a broker; show the status of brokers."""


@broker.command("run")
@click.argument("config", type=CONFIG)
@click.option(
    "--node-id", metavar="ID", type=click.IntRange(min=0), help="The broker id, if CONFIG does not set it."
)
def run_broker(config: str, node_id: int | None) -> int:
    """Run a broker until SIGTERM or Ctrl-C. CONFIG is its configuration file."""
    check_nodes_run_here()
    if OWNER_LINE in os.environ:
        return _run_owned(config)
    from metaquorum.broker.server.main import run

    return run(config, node_id)


@broker.command("status")
@client_options
@click.argument("addresses", nargs=-1, metavar="[HOST:PORT...]")
@json_option
def broker_status(options: ClientOptions, addresses: tuple[str, ...], as_json: bool) -> int:
    """Show the status of each broker. Exit code 1 if one does not answer.

    Without HOST:PORT, asks the controllers for the registered brokers and connects to the first listener of
    each.
    """
    answers = options.broker_nodes(addresses)
    if as_json:
        echo_json([status_json(answer) for answer in answers])
    else:
        click.echo("\n\n".join(status_text(answer) for answer in answers) or "no broker is registered")
    return EXIT_FAILED if any(answer.status is None for answer in answers) else 0


NOBODY = -1
"""Kafka's value for no leader and no vote."""


def metrics(status: NodeStatus) -> dict[str, int | str]:
    """Figures by their names in Kafka 3.7, if they count what Kafka's count.
    Offsets of *records* are inclusive; the high watermark
    and log end are exclusive."""
    fenced = sum(_is_fenced(broker) for broker in status.brokers)
    state = _raft_state(status)
    votes = state in ("leader", "candidate", "voted")
    return {
        "current-state": state,
        "current-leader": NOBODY if status.leader_id is None else status.leader_id,
        "current-vote": status.voted_id if votes and status.voted_id is not None else NOBODY,
        "current-epoch": status.epoch,
        "high-watermark": status.high_watermark,
        "log-end-offset": status.log_end_offset,
        "CurrentMetadataVersion": status.metadata_version,
        "ActiveControllerCount": int(status.is_active),
        "FencedBrokerCount": fenced,
        "ActiveBrokerCount": len(status.brokers) - fenced,
        "GlobalTopicCount": status.topics,
        "GlobalPartitionCount": status.partitions,
        "LastAppliedRecordOffset": status.applied_offset - 1,
        "LastCommittedRecordOffset": status.committed_offset - 1,
    }


def _raft_state(status: NodeStatus) -> str:
    """Kafka's name of a state. Kafka distinguishes observers from followers and voters that voted from
    others, and calls a resigned leader unattached."""
    match status.role:
        case "follower" if status.is_observer:
            return "observer"
        case "unattached" if status.voted_id is not None:
            return "voted"
        case "resigned":
            return "unattached"
        case role:
            return role


def _is_fenced(broker: BrokerControlStatus) -> bool:
    return broker.state in (BrokerControlState.FENCED, BrokerControlState.SHUTDOWN)


def brokers_by_state(status: NodeStatus) -> dict[str, int]:
    return dict(sorted(Counter(broker.state.value for broker in status.brokers).items()))


def node_json(answer: NodeAnswer) -> dict[str, Any]:
    """A controller as JSON: `error` if the address did not answer, otherwise all
    that the controller reports."""
    values: dict[str, Any] = {"address": address_text(*answer.address)}
    if answer.report is None:
        return values | {"error": answer.problem}
    status = answer.report.status
    return values | {
        "nodeId": status.node_id,
        "clusterId": status.cluster_id,
        "role": status.role,
        "observer": status.is_observer,
        "epoch": status.epoch,
        "leaderId": status.leader_id,
        "active": status.is_active,
        "logStartOffset": status.log_start_offset,
        "logEndOffset": status.log_end_offset,
        "syncedOffset": status.synced_offset,
        "highWatermark": status.high_watermark,
        "committedOffset": status.committed_offset,
        "appliedOffset": status.applied_offset,
        "lastSnapshotOffset": status.last_snapshot_offset,
        "pendingBatches": status.pending_batches,
        "answersWaiting": status.answers_waiting,
        "work": status.work,
        "lostCommitted": losses_json(status.losses),
        "sessions": status.sessions,
        "brokersByState": brokers_by_state(status),
        "brokers": [_broker_json(broker) for broker in status.brokers],
        "metrics": metrics(status),
        "counters": asdict(status.counters),
        "loop": asdict(answer.report.loop),
    }


def _broker_json(broker: BrokerControlStatus) -> dict[str, Any]:
    return {
        "brokerId": broker.broker_id,
        "epoch": broker.epoch,
        "state": broker.state.value,
        "rack": broker.rack,
        "listeners": broker.listeners,
        "leaseRemainingMs": broker.lease_remaining_ms,
        "appliedOffset": broker.applied_offset,
    }


def node_text(answer: NodeAnswer) -> str:
    """A block of `name: value` lines, or one line for an address that did not answer."""
    if answer.report is None:
        return f"{address_text(*answer.address)}: {answer.problem}"
    rows = _rows(address_text(*answer.address), answer.report)
    rows += [("LOST", loss) for loss in answer.report.status.losses]
    return "\n".join(f"{name + ':':<18}{value}" for name, value in rows)


def _rows(address: str, report: NodeReport) -> list[tuple[str, object]]:
    status, counters, loop = report.status, report.status.counters, report.loop
    states = ", ".join(f"{count} {state}" for state, count in brokers_by_state(status).items()) or "none"
    observes = ", observes only" if status.is_observer else ""
    active = ", active" if status.is_active else ""
    return [
        ("Node", f"{status.node_id} at {address}, cluster {status.cluster_id}"),
        ("Role", f"{status.role}{observes}{active}, epoch {status.epoch}"),
        ("Leader", "unknown" if status.leader_id is None else status.leader_id),
        ("Vote", "none" if status.voted_id is None else status.voted_id),
        ("Log", f"{status.log_start_offset} to {status.log_end_offset}, synced to {status.synced_offset}"),
        ("HighWatermark", "unknown" if status.high_watermark < 0 else status.high_watermark),
        ("State", f"committed to {status.committed_offset}, applied to {status.applied_offset}"),
        ("LastSnapshot", status.last_snapshot_offset),
        ("Waiting", f"{status.pending_batches} batches, {status.answers_waiting} answers"),
        ("Work", "; ".join(status.work) or "none"),
        ("Brokers", f"{states}; {status.sessions} sessions"),
        ("Topics", f"{status.topics} with {status.partitions} partitions"),
        ("Requests", f"{counters.requests}, {counters.heartbeats} heartbeats, {counters.refused_busy} busy"),
        (
            "Loop",
            f"{loop.events} events, {loop.steps} steps, {loop.syncs} syncs, {loop.gaps} gaps"
            f" (longest {loop.longest_gap_ms} ms), {loop.refused} refused",
        ),
    ]


def status_text(answer: BrokerAnswer) -> str:
    """A block of lines for a broker, or the line that says why there is no answer."""
    address = address_text(*answer.address)
    status = answer.status
    if status is None:
        return f"{address}: {answer.problem}"
    number = f"{status.process_state.name} {status.process_state.value}"
    left_ms = status.lease_left_ms
    lines = [
        ("Broker", f"{status.node_id} at {address}, cluster {answer.cluster_id}"),
        ("State", f"{status.state.name} (Kafka: {number}): {status.state.meaning}"),
        ("Epoch", "not registered" if status.broker_epoch is None else str(status.broker_epoch)),
        ("Lease", "none" if left_ms is None else f"{left_ms} ms left"),
        ("Applied", f"offset {status.applied_offset}, {_behind(status)}"),
        ("Quorum", f"leader {_known(status.leader_id)}, epoch {status.quorum_epoch}"),
    ]
    if status.last_problem:
        lines.append(("Waits for", status.last_problem))
    return "\n".join(f"{name + ':':<11}{value}" for name, value in lines)


def _behind(status: BrokerStatus) -> str:
    if status.high_watermark < 0:
        return "the high watermark is unknown"
    return f"{max(0, status.high_watermark - status.applied_offset)} behind the high watermark"


def _known(value: int | None) -> str:
    return "unknown" if value is None else str(value)


def status_json(answer: BrokerAnswer) -> dict[str, Any]:
    """The status as JSON. `metrics` has the figures under Kafka's names."""
    address = address_text(*answer.address)
    status = answer.status
    if status is None:
        return {"address": f"{address}", "error": answer.problem}
    return {
        "address": f"{address}",
        "brokerId": status.node_id,
        "clusterId": answer.cluster_id,
        "incarnationId": uuid_to_text(status.incarnation_id),
        "state": status.state.value,
        "fenced": status.fenced,
        "brokerEpoch": status.broker_epoch,
        "leaseLeftMs": status.lease_left_ms,
        "appliedOffset": status.applied_offset,
        "highWatermark": status.high_watermark,
        "logEndOffset": status.log_end_offset,
        "catchUpOffset": status.catch_up_offset,
        "leaderId": status.leader_id,
        "quorumEpoch": status.quorum_epoch,
        "failures": status.failures,
        "waitsFor": status.last_problem or None,
        "metrics": {
            "BrokerState": status.process_state.value,
            "last-applied-record-offset": status.applied_offset - 1,
        },
    }
