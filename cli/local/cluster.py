"""A running local cluster: its processes and a client, to start, wait for and stop as a whole.

Owns the order of starting and stopping, and when a cluster counts as ready. Does not signal processes itself
(`processes` does) or write their files (`cli.layout` does).
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TypeVar

from metaquorum.cli.client import ClusterClient, TlsOptions
from metaquorum.cli.errors import Failure, one_line
from metaquorum.cli.layout import HOST, Layout, LocalNode
from metaquorum.cli.local.forks import ForkServer
from metaquorum.cli.local.processes import STOP_WAIT_S, Processes
from metaquorum.metadata.errors import ApiError
from metaquorum.metadata.requests.common import DescribeQuorumResponse
from metaquorum.runtime.health import health_problem
from metaquorum.storage.files.known_committed import CommittedLoss

T = TypeVar("T")
POLL_S = 0.02
ASK_TIMEOUT_S = 3.0


class LocalCluster:
    """A context manager that closes the client and leaves the processes running. `forks` starts them; None:
    a fork server of its own."""

    def __init__(self, layout: Layout, forks: ForkServer | None = None) -> None:
        self.layout = layout
        self.processes = Processes(layout, forks)
        self.client = ClusterClient(layout.bootstrap, timeout_s=ASK_TIMEOUT_S, tls=TlsOptions())
        self._started: list[LocalNode] = []
        self._began_s = time.monotonic()

    def __enter__(self) -> LocalCluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.client.close()
        self.processes.close()

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
