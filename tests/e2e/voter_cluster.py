"""A cluster of real processes whose voters are in the log, with the commands of docs/operations.md run on it
as they are written."""

from __future__ import annotations

import asyncio
import re
import shlex
import shutil
import time
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path

from metaquorum.clients.quorum.admin import AdminClient
from metaquorum.clients.search import ClientError
from metaquorum.metadata.errors import ApiError
from metaquorum.metadata.requests.common import DescribeQuorumResponse
from metaquorum.node.local_nodes import free_ports
from tests.e2e.cluster import Cluster, Node, client_loop, random_id
from tests.e2e.processes import REPOSITORY, run_cli

BOOK = REPOSITORY / "docs" / "operations.md"
CLUSTER_ID = "CLUSTER-ID"
"""The cluster's id as one word of a command."""
_BLOCK = re.compile(r"^ *```\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


def commands_of(heading: str) -> list[list[str]]:
    """The commands in the blocks of one section of the page, in order."""
    sections = re.split(r"^#+ ", BOOK.read_text(), flags=re.MULTILINE)
    (section,) = [each for each in sections if each.startswith(heading + "\n")]
    blocks = "".join(_BLOCK.findall(section)).replace("\\\n", " ").replace("<cluster id>", CLUSTER_ID)
    found = [shlex.split(line)[1:] for line in blocks.splitlines() if line.strip().startswith("metaquorum ")]
    assert found, f"no commands under {heading}"
    return found


class DynamicCluster(Cluster):
    """The first `controllers` nodes are the first voters. A node that is added or emptied joins as an
    observer."""

    def write_config(self, node: Node) -> None:
        super().write_config(node)
        servers = self.bootstrap if node.role == "broker" else self.quorum_servers
        node.set_properties(
            {"controller.quorum.voters": None, "controller.quorum.bootstrap.servers": servers}
        )

    def _formatting(self, node: Node, cluster_id: str | None) -> list[str]:
        more = ["--initial-controllers", self.voters] if node.role == "controller" else []
        identity = ["--cluster-id", cluster_id or self.cluster_id]
        return ["storage", "format", "--config", str(node.config), *identity, *more]

    def unused_id(self) -> int:
        """The id after those of all controllers that ever existed."""
        return 1 + max(int(home.name.rpartition("-")[2]) for home in self.directory.glob("controller-*"))

    def new_controller(self, node_id: int) -> Node:
        """Adds a controller, configured and neither formatted nor started."""
        (port,) = free_ports(1)
        node = Node(self.directory / f"controller-{node_id}", "controller", node_id, port, random_id())
        self.nodes.append(node)
        self.write_config(node)
        return node

    def lose_disk(self, node: Node) -> None:
        """kill -9, and its data is deleted."""
        node.kill()
        shutil.rmtree(node.data)

    def move(self, node: Node) -> None:
        """It listens elsewhere from its next start on."""
        node.port, node.kafka_port = free_ports(2)
        self.write_config(node)
        self._client = None

    def retire(self, node: Node) -> None:
        """It is not restarted, and no client uses it any longer."""
        node.kill()
        self.nodes.remove(node)
        self._client = None

    def follow_the_book(self, heading: str, node: Node, names: Mapping[str, object]) -> None:
        """Runs the section's commands; `names` replaces the page's ids and values with the test's."""
        known = {"controller.properties": str(node.config), CLUSTER_ID: self.cluster_id}
        known |= {old: str(new) for old, new in names.items()}
        for command in commands_of(heading):
            self.run([known.get(word, word) for word in command], node)

    def run(self, command: list[str], node: Node) -> None:
        """One command of the page; a server is started instead of waited for."""
        if command[:2] == ["controller", "run"]:
            node.start()
            node.wait_for_line("listens on")
        elif command[0] == "quorum":
            run_cli(*command, "--bootstrap-controllers", self.bootstrap)
        elif command[0] == "features":
            run_cli(*command, "--bootstrap", self.bootstrap_servers)
        else:
            run_cli(*command)

    def voter_ids(self) -> list[int]:
        return sorted(voter.node_id for voter in self.quorum().voters)

    def wait_voters(self, wanted: list[int]) -> DescribeQuorumResponse:
        """Until the leader reports these voters, and no change is pending."""

        def changed() -> DescribeQuorumResponse | None:
            found = self.quorum()
            right = sorted(voter.node_id for voter in found.voters) == wanted and found.open_change is None
            return found if right else None

        return self.wait(changed, f"the voters to be {wanted}")


class ActiveWatch:
    """Sends linearizable reads all the time; `longest_s` is the longest time without one that succeeded. Use
    as a context manager."""

    def __init__(self, cluster: Cluster) -> None:
        self.longest_s = 0.0
        self._bootstrap = cluster.bootstrap
        self._stopping = False
        self._running: Future[None] | None = None

    def __enter__(self) -> ActiveWatch:
        self._running = asyncio.run_coroutine_threadsafe(self._watch(), client_loop().loop)
        return self

    def __exit__(self, *exception: object) -> None:
        self._stopping = True
        if self._running is not None:
            self._running.result(60.0)

    async def _watch(self) -> None:
        last = time.monotonic()
        async with AdminClient(self._bootstrap, timeout_ms=1_000, attempts_max=1) as client:
            while not self._stopping:
                try:
                    await client.list_brokers()
                except (ApiError, ClientError):
                    await asyncio.sleep(0.01)
                    continue
                now = time.monotonic()
                self.longest_s, last = max(self.longest_s, now - last), now
                await asyncio.sleep(0.02)


def report(what: str, watch: ActiveWatch, directory: Path) -> None:
    """For people who read the output of the test; the file stays in its directory."""
    line = f"{what}: longest time without an active controller {watch.longest_s * 1000:.0f} ms"
    print(line)
    with (directory / "outages.txt").open("a") as file:
        file.write(line + "\n")
