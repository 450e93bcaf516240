"""`metaquorum demo`: starts a cluster, breaks and repairs parts of it, and shows what its log says.

A topic is written and read meanwhile, and no message may be missing or repeated. Each step is checked from
outside; the demo fails if a step had no effect. It always ends its processes, and removes its directory
unless a check failed.
"""

from __future__ import annotations

import contextlib
import shlex
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import click

from metaquorum.cli.errors import Failure
from metaquorum.cli.format import FormatPlan, apply_plan
from metaquorum.cli.given import GivenPath
from metaquorum.cli.layout import Layout, create
from metaquorum.cli.local import demo_checks
from metaquorum.cli.local.cluster import LocalCluster
from metaquorum.cli.local.demo_checks import KEYS, Traffic
from metaquorum.clients.admin.topics import (
    DescribedTopic,
    create_topics,
    delete_topics,
    describe_topics,
    list_topics,
)
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.image.types import BrokerRegistration
from metaquorum.metadata.requests.common import DescribeQuorumResponse, NewTopic
from metaquorum.node.local_nodes import LocalNode, free_ports
from metaquorum.platforms import ENDING_SIGNALS, check_nodes_run_here
from metaquorum.storage.uuids import uuid_from_text

T = TypeVar("T")
CONTROLLERS, BROKERS = 3, 3
STEP_TIMEOUT_S = 120.0
"""Seconds for one step. Most take a few, but more on a busy machine, which is not a failure."""
SETTINGS = {
    # The default of 9 seconds is a long time to watch a dead broker.
    "controller": {"broker.session.timeout.ms": "3000"},
    "broker": {"broker.heartbeat.interval.ms": "500"},
}
PARTITIONS = 6
TOPICS = (
    NewTopic(
        name="orders", partitions=PARTITIONS, replication_factor=3, configs=(("min.insync.replicas", "2"),)
    ),
    NewTopic(name="payments", partitions=3, replication_factor=2),
)


@click.command()
@click.option(
    "--directory",
    "-d",
    type=GivenPath(path_type=Path),
    help="Directory to run in. Default: a temporary one.",
)
@click.option("--keep", is_flag=True, help="Keep the directory even if every step succeeds.")
def demo(directory: Path | None, keep: bool) -> None:
    """Start a quorum, break parts of it, and show what its log says. Ends by itself."""
    check_nodes_run_here()
    began = time.monotonic()
    home = directory or Path(tempfile.mkdtemp(prefix="metaquorum-demo-"))
    layout = create(
        home,
        controllers=CONTROLLERS,
        brokers=BROKERS,
        ports=free_ports(CONTROLLERS + BROKERS),
        extra=SETTINGS,
    )
    try:
        with LocalCluster(layout) as cluster, _ended_in_any_case(cluster):
            story = _Story(cluster)
            try:
                story.play()
            finally:
                story.traffic.abandon()
        demo_checks.show_our_log(layout, story.expected, story.last_topics, story.last_brokers)
        demo_checks.show_kafkas_log()
    except BaseException as error:
        if not isinstance(error, BrokenPipeError):  # the reader is gone (`| head`), which is not a failure
            keep = True
            click.echo(f"the demo failed; its files and process logs are in {home}", err=True)
        raise
    finally:
        if not keep:
            shutil.rmtree(home, ignore_errors=True)
    click.echo(f"\nAll steps succeeded in {time.monotonic() - began:.1f} s.")
    if keep:
        click.echo(f"Any moment of it in a browser: metaquorum console {shlex.quote(str(home))}")


@contextlib.contextmanager
def _ended_in_any_case(cluster: LocalCluster) -> Iterator[None]:
    """Ends every process of the cluster, whatever happens inside. SIGTERM is handled as Ctrl-C."""
    previous = {number: signal.signal(number, signal.default_int_handler) for number in ENDING_SIGNALS}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        for node in cluster.layout.nodes:
            cluster.kill(node)


class _Story:
    """The steps. `expected`: the events that the log must show afterwards, in order: (kind, entity)."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self._layout: Layout = cluster.layout
        self.traffic = Traffic(self._layout.bootstrap_servers, "orders", self._layout.directory)
        self.expected: list[tuple[str, str]] = []
        self.last_topics: list[DescribedTopic] = []
        self.last_brokers: list[BrokerRegistration] = []
        self._lost = Path()

    def play(self) -> None:
        self._start()
        self._create_topics()
        self._begin_traffic()
        controller = self._kill_the_active_controller()
        self._flows()
        broker = self._kill_a_broker()
        self._flows()
        self._restart(controller, broker)
        hurt = self._lose_a_directory()
        self._flows()
        self._controlled_shutdown(hurt)
        self._replace_the_directory(hurt)
        self._delete_a_topic()
        self._count()
        self._remember()
        self._stop()

    def _start(self) -> None:
        _step(f"Starting {CONTROLLERS} controllers and {BROKERS} brokers in {self._layout.directory}")
        self._cluster.start_all()
        seconds = self._cluster.wait_ready(STEP_TIMEOUT_S)
        quorum = self._quorum()
        _done(
            f"controller {quorum.leader_id} leads in epoch {quorum.leader_epoch};"
            f" every broker is unfenced, after {seconds:.1f} s"
        )
        self.expected.append(("election", f"controller/{quorum.leader_id}"))

    def _create_topics(self) -> None:
        _step("Creating the topics orders (6 partitions, 3 replicas) and payments (3 partitions, 2 replicas)")
        self._wait(lambda: self._try_create(*TOPICS), "the first topics to be created")
        for wanted, found in zip(TOPICS, self._describe("orders", "payments"), strict=True):
            count = len(found.partitions)
            _check(count == wanted.partitions, f"{wanted.name} has {count} partitions")
        self._wait(lambda: self._all_led("orders", "payments"), "every partition to have a leader")
        _done("both exist, and every partition has a leader")

    def _kill_the_active_controller(self) -> LocalNode:
        before = self._quorum()
        victim = self._layout.node(f"controller-{before.leader_id}")
        _step(f"kill -9 of the active controller, {victim.name}")
        began = time.monotonic()
        self._cluster.kill(victim)
        after = self._wait(lambda: self._newer(before), "a new active controller")
        elected_s = time.monotonic() - began
        topic = NewTopic(name="after-failover", partitions=1, replication_factor=1)
        self._wait(lambda: self._try_create(topic), "the first write after the failover")
        written_s = time.monotonic() - began
        _check(after.leader_id != before.leader_id, "the killed controller is still reported as the leader")
        _done(
            f"controller {after.leader_id} leads in epoch {after.leader_epoch}, seen after {elected_s:.2f} s;"
            f" it accepted a write after {written_s:.2f} s"
        )
        self.expected += [
            ("election", f"controller/{after.leader_id}"),
            ("topic created", "topic/after-failover"),
        ]
        return victim

    def _kill_a_broker(self) -> LocalNode:
        leaders = [partition.leader for partition in self._describe("orders")[0].partitions]
        victim = self._layout.node(f"broker-{max(set(leaders), key=leaders.count)}")
        _step(f"kill -9 of {victim.name}, which leads {leaders.count(victim.node_id)} partitions of orders")
        began = time.monotonic()
        self._cluster.kill(victim)
        self._wait(lambda: self._state(victim) == "fenced", f"fencing of {victim.name}")
        fenced_s = time.monotonic() - began
        self._wait(lambda: not self._leads(victim), f"new leaders for the partitions of {victim.name}")
        _done(f"fenced after {fenced_s:.1f} s (its session lasts 3 s); other brokers lead its partitions")
        self.expected.append(("broker fenced", f"broker/{victim.node_id}"))
        return victim

    def _restart(self, controller: LocalNode, broker: LocalNode) -> None:
        _step(f"Starting {controller.name} and {broker.name} again")
        began = time.monotonic()
        self._cluster.start(controller)
        self._cluster.start(broker)
        self._wait(lambda: self._state(broker) == "running", f"unfencing of {broker.name}")
        self._wait(lambda: self._caught_up(controller), f"catch-up of {controller.name}")
        _done(
            f"{broker.name} is unfenced and {controller.name} has caught up,"
            f" after {time.monotonic() - began:.1f} s"
        )
        self.expected += [
            ("broker registered", f"broker/{broker.node_id}"),
            ("broker unfenced", f"broker/{broker.node_id}"),
        ]

    def _begin_traffic(self) -> None:
        _step("metaquorum produce (acks=all, min.insync.replicas=2) and consume start, and keep running")
        self.traffic.start()
        self._flows()

    def _flows(self) -> None:
        """Waits until messages pass that did not exist before."""
        before = self.traffic.passed
        self._wait(lambda: self.traffic.passed > before + 2 * KEYS, "messages to arrive")
        click.echo(
            f"   orders: {self.traffic.passed} messages written and read so far, and more are arriving"
        )

    def _lose_a_directory(self) -> LocalNode:
        """Removes the directory under a running broker. Open files do not notice: the broker's probe of its
        directories does, or the next new segment."""
        leaders = [partition.leader for partition in self._describe("orders")[0].partitions]
        hurt = self._layout.node(f"broker-{max(set(leaders), key=leaders.count)}")
        ids = [uuid_from_text(text) for text in hurt.log_directory_ids]
        held = [_partitions_in(each) for each in self._layout.log_dirs(hurt)]
        led = [self._led_from(hurt, each) for each in held]
        lost = led.index(max(led))
        path = self._layout.log_dirs(hurt)[lost]
        _step(f"{path.name} of {hurt.name} is lost, with {led[lost]} leaders of orders")
        began = time.monotonic()
        path.rename(path.with_name(f"{path.name}.lost"))
        self._wait(lambda: not self._led_from(hurt, held[lost]), "new leaders for its partitions")
        moved_s = time.monotonic() - began
        self._wait(lambda: self._is_noted(hurt, ids[lost]), "the directory to be reported as offline")
        self._wait(lambda: self._state(hurt) == "running", f"{hurt.name} to be still running")
        kept = led[1 - lost]
        _done(
            f"the loss was reported; other brokers lead its partitions after {moved_s:.1f} s. {hurt.name} "
            f"continues with its other directory, where it led {kept} and leads "
            f"{self._led_from(hurt, held[1 - lost])}"
        )
        self._lost = path
        self.expected.append(("directory failed", f"broker/{hurt.node_id}"))
        return hurt

    def _replace_the_directory(self, hurt: LocalNode) -> None:
        _step(f"{hurt.name} starts again with a new, empty {self._lost.name}")
        began = time.monotonic()
        plan = FormatPlan(
            directories=(str(self._lost),), cluster_id=self._layout.cluster_id, node_id=hurt.node_id
        )
        apply_plan(plan)
        self._cluster.start(hurt)
        self._wait(lambda: self._state(hurt) == "running", f"unfencing of {hurt.name}")
        self._wait(self._all_in_sync, "all replicas of orders to be in sync again")
        seconds = time.monotonic() - began
        _done(f"the lost replicas were copied from their leaders: all in sync after {seconds:.1f} s")

    def _count(self) -> None:
        _step(
            "The producer stops and the consumer reads to the end: is every message there once and in order?"
        )
        account = self.traffic.finish(STEP_TIMEOUT_S)
        _done(
            f"{account.written_total} written = {account.acknowledged} acknowledged = {account.read_total} "
            f"read once and in order; the slowest message took {account.longest_s:.1f} s from write to "
            "read"
        )

    def _controlled_shutdown(self, leaving: LocalNode) -> None:
        leaders = [partition.leader for partition in self._describe("orders")[0].partitions]
        _step(
            f"Controlled shutdown of {leaving.name},"
            f" which leads {leaders.count(leaving.node_id)} partitions of orders"
        )
        began = time.monotonic()
        outcome = self._cluster.stop(leaving)
        _check(outcome == "stopped", f"{leaving.name} did not stop by itself: {outcome}")
        code = self._cluster.processes.exit_code(leaving)
        _check(code == 0, f"{leaving.name} exited with code {code}")
        seconds = time.monotonic() - began
        self._wait(lambda: self._state(leaving) == "fenced", f"fencing of {leaving.name}")
        self._wait(lambda: not self._leads(leaving), f"{leaving.name} to lead no partition")
        _done(
            f"its leaderships moved, then it stopped, after {seconds:.1f} s; every partition of orders has "
            "a leader"
        )
        self._wait(lambda: self._all_led("orders"), "every partition of orders to have a leader")
        self.expected += [
            ("broker in controlled shutdown", f"broker/{leaving.node_id}"),
            ("broker fenced", f"broker/{leaving.node_id}"),
        ]

    def _delete_a_topic(self) -> None:
        _step("Deleting the topic payments")
        self._wait(lambda: self._try_delete("payments"), "the deletion to be accepted")
        listed = self._wait(lambda: self._cluster.brokers.call(list_topics), "the list of topics")
        names = {each.name for each in listed} - {"__consumer_offsets"}
        _check(names == {"orders", "after-failover"}, f"the topics are now {sorted(names)}")
        _done("it is gone")
        self.expected.append(("topic deleted", "topic/payments"))

    def _remember(self) -> None:
        """Keeps the active controller's last answers, which the replayed log must match."""
        self.last_topics = self._describe("after-failover", "orders")
        self.last_brokers = self._wait(self._cluster.client.brokers, "the list of brokers")

    def _stop(self) -> None:
        _step("Stopping everything in order: brokers, standby controllers, active controller")
        outcomes = self._cluster.stop_all(STEP_TIMEOUT_S)
        _check("killed" not in outcomes.values(), f"a process did not stop by itself: {outcomes}")
        for node in self._layout.nodes:
            code = self._cluster.processes.exit_code(node)
            _check(
                code == 0,
                f"{node.name} ended with exit code {code}: {self._cluster.processes.last_line(node)}",
            )
        _done("every process exited with code 0")

    # ---- looking from outside --------------------------------------------------------------------

    def _wait(self, condition: Callable[[], T | None], what: str) -> T:
        return self._cluster.wait_until(condition, STEP_TIMEOUT_S, what)

    def _quorum(self) -> DescribeQuorumResponse:
        return self._wait(self._cluster.client.quorum, "a description of the quorum")

    def _describe(self, *names: str) -> list[DescribedTopic]:
        brokers = self._cluster.brokers
        return self._wait(
            lambda: brokers.call(lambda client: describe_topics(client, names)), "a description of topics"
        )

    def _try_create(self, *topics: NewTopic) -> bool:
        """After a timeout the call is sent again: the topic may exist already."""
        for result in self._cluster.brokers.call(lambda client: create_topics(client, topics)):
            accepted = result.error in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS)
            _check(accepted, f"{result.name} was refused: {result.message}")
        return True

    def _try_delete(self, name: str) -> bool:
        (result,) = self._cluster.brokers.call(lambda client: delete_topics(client, (name,)))
        gone = result.error in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        _check(gone, f"the deletion was refused: {result.message}")
        return True

    def _all_led(self, *names: str) -> bool:
        return all(
            partition.leader in partition.isr
            for topic in self._describe(*names)
            for partition in topic.partitions
        )

    def _newer(self, before: DescribeQuorumResponse) -> DescribeQuorumResponse | None:
        found = self._quorum()
        return found if found.leader_epoch > before.leader_epoch and found.leader_id >= 0 else None

    def _state(self, node: LocalNode) -> str:
        for broker in self._cluster.client.brokers():
            if broker.broker_id == node.node_id:
                return "fenced" if broker.fenced else "running"
        return "not registered"

    def _leads(self, node: LocalNode) -> bool:
        (orders,) = self._describe("orders")
        return any(partition.leader == node.node_id for partition in orders.partitions)

    def _led_from(self, node: LocalNode, held: frozenset[int]) -> int:
        """How many of these partitions of orders the node leads."""
        return sum(
            partition.leader == node.node_id and partition.index in held
            for partition in self._describe("orders")[0].partitions
        )

    def _is_noted(self, node: LocalNode, directory: bytes) -> bool:
        return all(
            directory not in broker.directories
            for broker in self._cluster.client.brokers()
            if broker.broker_id == node.node_id
        )

    def _all_in_sync(self) -> bool:
        (orders,) = self._describe("orders")
        return all(set(partition.isr) == set(partition.replicas) for partition in orders.partitions)

    def _caught_up(self, node: LocalNode) -> bool:
        quorum = self._quorum()
        return any(
            voter.node_id == node.node_id and voter.log_end_offset >= quorum.high_watermark
            for voter in quorum.voters
        )


def _partitions_in(directory: Path) -> frozenset[int]:
    """The partitions of orders with a replica in a log directory."""
    return frozenset(int(each.name.rpartition("-")[2]) for each in directory.glob("orders-*[0-9]"))


def _step(text: str) -> None:
    click.echo(f"\n== {text}")


def _done(text: str) -> None:
    click.echo(f"   {text}")


def _check(happened: bool, problem: str) -> None:
    if not happened:
        raise Failure(f"the demo failed at a check: {problem}")
