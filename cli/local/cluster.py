"""A running local cluster: its processes and a client, to start, wait for and stop as a whole."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TypeVar

import click
import msgspec
import psutil

from metaquorum.cli.admin.voter_changes import ByGrpc, Ordered, VoterChanger, VoterWish
from metaquorum.cli.client import ClientOptions, ClusterClient, TlsOptions
from metaquorum.cli.cluster import ClusterOptions, OpenCluster
from metaquorum.cli.errors import Failure
from metaquorum.cli.layout import Layout
from metaquorum.cli.local.forks import ForkError, ForkServer, NewProcesses, StartedProcess, node_starter
from metaquorum.cli.local.guardian import ProcessRecord, recorded_process
from metaquorum.lines import one_line
from metaquorum.metadata.errors import ApiError
from metaquorum.metadata.requests.common import DescribeQuorumResponse
from metaquorum.node.local_nodes import HOST, LocalNode
from metaquorum.platforms import KILL
from metaquorum.rpc.health import health_problem
from metaquorum.storage.disk.posix import private_file
from metaquorum.storage.files.known_committed import CommittedLoss
from metaquorum.storage.uuids import uuid_from_text

STOP_WAIT_S = 40.0
"""Seconds before a node is killed: a broker's controlled shutdown takes up to 30 s by default."""
KILL_WAIT_S = 30.0
"""Seconds to wait after SIGKILL: a process that waits for a disk ends when the disk answers."""
_POLL_S = 0.02


class Processes:
    """The processes of one cluster, however started: no other is ever signalled (`recorded_process`). `forks`
    starts them; None: a fork server of its own. `more_environment`: of each, beside this process's."""

    def __init__(
        self,
        layout: Layout,
        forks: ForkServer | NewProcesses | None = None,
        more_environment: Mapping[str, str] | None = None,
    ) -> None:
        self._layout = layout
        self._environment = more_environment or {}
        self._forks = forks
        self._children: dict[str, StartedProcess] = {}

    def close(self) -> None:
        """Starts no more processes. Running ones continue."""
        if self._forks is not None:
            self._forks.close()
            self._forks = None

    def pid(self, node: LocalNode) -> int | None:
        """The pid of the node's running process, or None."""
        process = self._find(node)
        return None if process is None else process.pid

    def start(self, node: LocalNode) -> int:
        """Starts the node's process in its own session and records it. Raises Failure if one is running."""
        running = self.pid(node)
        if running is not None:
            raise Failure(
                f"{node.name} is already running (pid {running}); stop it with: metaquorum local down"
            )
        if self._forks is None:
            self._forks = node_starter()
        with private_file(self._layout.log_file(node)).open("ab") as output:
            try:
                child = self._forks.start(
                    ["node" if node.role == "combined" else node.role, "run", str(self._layout.config(node))],
                    environment={**os.environ, **self._environment},
                    directory=self._layout.home(node),
                    output=output.fileno(),
                )
            except ForkError as error:
                raise Failure(f"{node.name} did not start: {error}") from error
        self._children[node.name] = child
        record = ProcessRecord(pid=child.pid, created_s=psutil.Process(child.pid).create_time())
        private_file(self._layout.pid_file(node)).write_bytes(msgspec.json.encode(record))
        return child.pid

    def signal(self, node: LocalNode, number: int) -> bool:
        """Sends a signal to the node's process; False where none is running."""
        process = self._find(node)
        if process is None:
            return False
        try:
            process.send_signal(number)
        except psutil.NoSuchProcess:
            return False
        return True

    def wait_gone(self, node: LocalNode, timeout_s: float) -> bool:
        """Waits until the node's process has ended. False: it has not within the time."""
        deadline = time.monotonic() + timeout_s
        while self._find(node) is not None:
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_S)
        return True

    def kill(self, node: LocalNode) -> None:
        """Sends SIGKILL and waits for the end. Raises Failure if it does not end."""
        if self.signal(node, KILL) and not self.wait_gone(node, KILL_WAIT_S):
            raise Failure(f"{node.name} is still running after SIGKILL; inspect it with ps")
        self._layout.pid_file(node).unlink(missing_ok=True)

    def stop(self, node: LocalNode, wait_s: float = STOP_WAIT_S) -> str:
        """SIGTERM, a bounded wait, then SIGKILL. Returns `not running`, `stopped` or `killed`."""
        if not self.signal(node, signal.SIGTERM):
            self._layout.pid_file(node).unlink(missing_ok=True)
            return "not running"
        if self.wait_gone(node, wait_s):
            self._layout.pid_file(node).unlink(missing_ok=True)
            return "stopped"
        self.kill(node)
        return "killed"

    def clean(self, node: LocalNode) -> None:
        """Removes the record of a process that has ended."""
        self._layout.pid_file(node).unlink(missing_ok=True)

    def exit_code(self, node: LocalNode) -> int | None:
        """The exit code of a process that this object started and that has ended."""
        child = self._children.get(node.name)
        return None if child is None else child.poll()

    def last_line(self, node: LocalNode) -> str:
        """The last line that the node's process wrote, for a message about its end."""
        try:
            lines = self._layout.log_file(node).read_text(errors="replace").splitlines()
        except OSError:
            return "(no output)"
        return next((line for line in reversed(lines) if line.strip()), "(no output)")

    def ending(self, node: LocalNode) -> str | None:
        """The last line of a process that ended without a stop from here. None: it runs, or was stopped."""
        ended = self._layout.pid_file(node).exists() and self._find(node) is None
        return self.last_line(node) if ended else None

    def _find(self, node: LocalNode) -> psutil.Process | None:
        child = self._children.get(node.name)
        if child is not None and child.poll() is None:
            # Our child's pid cannot be reused before the child is waited for.
            with contextlib.suppress(psutil.NoSuchProcess):
                return psutil.Process(child.pid)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(KILL_WAIT_S)  # it was waited for, and its exit code will arrive
        # The node may have been started again since by another command.
        return recorded_process(self._layout.pid_file(node), self._layout.config(node))


T = TypeVar("T")
POLL_S = 0.02
ASK_TIMEOUT_S = 3.0


class LocalCluster:
    """A context manager that closes the client and leaves the processes running. `forks` starts them; None:
    one of its own."""

    def __init__(self, layout: Layout, forks: ForkServer | NewProcesses | None = None) -> None:
        self.layout = layout
        self.processes = Processes(layout, forks)
        self.client = ClusterClient(layout.bootstrap, timeout_s=ASK_TIMEOUT_S, tls=TlsOptions())
        self._brokers: OpenCluster | None = None
        self._started: list[LocalNode] = []
        self._began_s = time.monotonic()

    def __enter__(self) -> LocalCluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.client.close()
        if self._brokers is not None:
            self._brokers.close()
        self.processes.close()

    @property
    def brokers(self) -> OpenCluster:
        """What clients of the cluster ask brokers for."""
        if self._brokers is None:
            servers = self.layout.bootstrap_servers
            options = ClusterOptions(bootstrap=servers, timeout_s=ASK_TIMEOUT_S, tls=TlsOptions())
            self._brokers = options.open()
        return self._brokers

    def start(self, node: LocalNode) -> int:
        pid = self.processes.start(node)
        self._started.append(node)
        return pid

    def start_all(self) -> None:
        """Starts every node that is not running."""
        self._began_s = time.monotonic()
        for node in self.layout.nodes:
            if self.processes.pid(node) is None:
                self.start(node)

    def wait_ready(self, timeout_s: float) -> float:
        """Waits until every process reports that it serves (a controller: in a quorum with a leader; a
        broker: unfenced) and the quorum agrees. Returns the seconds since `start_all`. Raises Failure.

        The quorum's view is not enough: a killed broker counts as alive until its session ends.
        """
        left = list(self.layout.nodes)
        wanted = {node.node_id for node in self.layout.brokers}

        def ready() -> bool:
            while left:
                if problem := self._why_not_serving(left[0]):
                    raise Failure(f"{left[0].name}: {problem}")
                left.pop(0)
            if self.client.quorum().leader_id < 0:
                return False
            return wanted <= {broker.broker_id for broker in self.client.brokers() if not broker.fenced}

        self.wait_until(ready, timeout_s, "all processes to become ready")
        return time.monotonic() - self._began_s

    def _why_not_serving(self, node: LocalNode) -> str:
        if self.processes.pid(node) is None:
            return "it is not running"
        asked_ms = int(ASK_TIMEOUT_S * 1000)

        def asked(port: int) -> str:
            return self.client.call(lambda _: health_problem((HOST, port), timeout_ms=asked_ms))

        return next((problem for port in node.health_ports if (problem := asked(port))), "")

    def wait_until(self, condition: Callable[[], T | None], timeout_s: float, what: str) -> T:
        """Evaluates the condition until it is true, and returns its value. Raises Failure at the timeout, or
        when a process that should run has ended. Tries again while the cluster does not answer."""
        deadline = time.monotonic() + timeout_s
        reason = "no answer yet"
        while True:
            try:
                found = condition()
                if found:
                    return found
                reason = "not yet"
            except (ApiError, Failure) as error:
                reason = one_line(error)
            self._check_started()
            if time.monotonic() > deadline:
                raise Failure(
                    f"waited {timeout_s:.0f} s for {what}: {reason};"
                    f" see {self.layout.directory}/*/process.log"
                )
            time.sleep(POLL_S)

    def _check_started(self) -> None:
        for node in self._started:
            code = self.processes.exit_code(node)
            if code is not None:
                raise Failure(f"{node.name} exited with code {code}: {self.processes.last_line(node)}")

    def forget(self, node: LocalNode) -> None:
        """From here on, the node's process may end without an error in `wait_until`."""
        self._started = [one for one in self._started if one != node]

    def kill(self, node: LocalNode) -> None:
        """Sends SIGKILL."""
        self.forget(node)
        self.processes.kill(node)

    def stop(self, node: LocalNode) -> str:
        """SIGTERM and a wait, then SIGKILL. Returns which of them ended it."""
        self.forget(node)
        return self.processes.stop(node)

    @property
    def started(self) -> list[LocalNode]:
        """The nodes that this object started and was not asked to stop."""
        return list(self._started)

    def stop_all(self, wait_s: float = STOP_WAIT_S) -> dict[str, str]:
        """Stops brokers and combined nodes together, then standby controllers, then the active controller."""
        return self.stop_nodes(self.layout.nodes, wait_s)

    def stop_nodes(self, nodes: Sequence[LocalNode], wait_s: float = STOP_WAIT_S) -> dict[str, str]:
        """Stops these, in that order."""
        active = self._active_id()
        outcomes: dict[str, str] = {}
        running = {}
        brokers = [node for node in nodes if node.serves]
        for broker in brokers:
            self.forget(broker)
            running[broker.name] = self.processes.signal(broker, signal.SIGTERM)
        deadline = time.monotonic() + wait_s
        for broker in brokers:
            gone = self.processes.wait_gone(broker, max(0.1, deadline - time.monotonic()))
            if not gone:
                self.processes.kill(broker)
            self.processes.clean(broker)
            outcomes[broker.name] = (
                "killed" if not gone else "stopped" if running[broker.name] else "not running"
            )
        controllers = [node for node in nodes if not node.serves]
        for node in sorted(controllers, key=lambda one: one.node_id == active):
            outcomes[node.name] = self.stop(node)
        return outcomes

    def stop_started(self) -> None:
        """After a failed start, stops what this object started and nothing else."""
        for node in list(reversed(self._started)):
            self.kill(node)

    def lost_committed(self) -> tuple[CommittedLoss, ...]:
        """Committed records that other nodes know of and the leader does not have. Empty without a leader."""
        quorum = self._quorum()
        return () if quorum is None else quorum.losses

    def _active_id(self) -> int | None:
        quorum = self._quorum()
        return None if quorum is None else quorum.leader_id

    def _quorum(self) -> DescribeQuorumResponse | None:
        if all(self.processes.pid(node) is None for node in self.layout.controllers):
            return None
        try:
            return self.client.quorum()
        except (ApiError, Failure):
            return None


def add_missing_voters(cluster: LocalCluster, timeout_s: float) -> None:
    """Adds the missing voters, sorted by id. Each may take `timeout_s` to start and catch up. Does nothing
    for configured voters. Raises ApiError and Failure."""
    layout = cluster.layout
    quorum = cluster.wait_until(cluster.client.quorum, timeout_s, "the quorum to answer")
    if quorum.kraft_version == 0:
        return
    voters = {voter.node_id for voter in quorum.voters}
    options = ClientOptions(bootstrap=layout.bootstrap, timeout_s=ASK_TIMEOUT_S, tls=TlsOptions())
    for node in layout.controllers:
        if node.node_id in voters:
            continue
        wish = VoterWish(add_id=node.node_id, directory_id=uuid_from_text(node.directory_id))
        ordered = Ordered(wish=wish, wait_s=timeout_s, patience_s=timeout_s)
        changer = VoterChanger(ByGrpc(cluster.client, options), ordered, click.echo)
        changer.perform(changer.plan())
