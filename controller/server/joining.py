"""An observing controller requests automatically to be made a voter (controller.quorum.auto.join.enable).

Owns when the request is sent, and where. Does not know which request: `controller.voters.joining` decides.
The leader decides whether the node has nearly caught up, and whether a change may begin.
"""

from __future__ import annotations

import asyncio
import logging
import random

from metaquorum.controller.voters import joining
from metaquorum.metadata.errors import ApiError
from metaquorum.metadata.requests.voters import AddRaftVoterRequest, RemoveRaftVoterRequest
from metaquorum.raft.core import RaftCore
from metaquorum.runtime.backoff import Backoff, BackoffPolicy
from metaquorum.runtime.client.admin import AdminClient, ClientError
from metaquorum.runtime.client.nodes import describe_nodes
from metaquorum.runtime.client.voters import CHANGE_TIMEOUT_MS, add_raft_voter, remove_raft_voter
from metaquorum.runtime.tls.material import TlsMaterial

RETRY = BackoffPolicy(initial_ms=250, max_ms=5_000)
PROBE_TIMEOUT_MS = 1_000
"""How long a voter with this node's id may take to identify itself."""

_log = logging.getLogger(__name__)


class Joining:
    """`client` sends requests to the quorum and is closed by its owner; `tls`: how controllers are reached,
    None: plain text. Call `poke` after every step: it costs nothing while nothing is due. If not `enabled`,
    one line says how to make this node a voter."""

    def __init__(
        self,
        raft: RaftCore,
        client: AdminClient,
        rng: random.Random,
        tls: TlsMaterial | None,
        *,
        enabled: bool,
    ) -> None:
        self._raft = raft
        self._client = client
        self._rng = rng
        self._tls = tls
        self._enabled = enabled
        silent_ms = 2 * raft.state.config.check_quorum_ms
        self._joiner = joining.Joiner(raft, silent_ms=silent_ms, timeout_ms=CHANGE_TIMEOUT_MS)
        self._task: asyncio.Task[None] | None = None
        self._said = ""

    def poke(self) -> None:
        """Starts a request if one is due and none is in progress."""
        if not joining.observes(self._raft) or (self._task is not None and not self._task.done()):
            return
        if self._enabled and joining.may_join(self._raft):
            self._task = asyncio.get_running_loop().create_task(self._join())
        elif self._raft.node_id not in self._raft.voters or self._raft.kraft_version >= 1:
            # A static voter with another directory logs that itself.
            self._say(joining.how_to_join(self._raft))

    async def close(self) -> None:
        """Stops sending requests."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _join(self) -> None:
        backoff = Backoff(RETRY, self._rng)
        while joining.may_join(self._raft):
            try:
                await self._ask()
            except (ApiError, ClientError) as error:
                self._say(f"controller {self._raft.node_id} is not a voter yet: {error}")
            await asyncio.sleep(backoff.failed(0) / 1000)

    async def _ask(self) -> None:
        """Sends one change, or logs why it has to wait."""
        node_id, quorum, found = self._raft.node_id, None, []
        entry = self._joiner.entry
        if entry is not None:
            quorum = await self._client.describe_quorum()
            addresses = [(each.host, each.port) for each in entry.endpoints]
            answers = await describe_nodes(addresses, timeout_ms=PROBE_TIMEOUT_MS, tls=self._tls)
            found = [answer.report.status for answer in answers if answer.report is not None]
        now_ms = int(asyncio.get_running_loop().time() * 1000)
        match self._joiner.wanted(now_ms, quorum, found):
            case str() as problem:
                self._say(problem)
            case RemoveRaftVoterRequest() as removal:
                await remove_raft_voter(self._client, removal)
                _log.info("controller %d: its entry with a directory that it lost was removed", node_id)
            case AddRaftVoterRequest() as addition:
                await add_raft_voter(self._client, addition)
                _log.info("controller %d is a voter", node_id)

    def _say(self, text: str) -> None:
        if text != self._said:
            self._said = text
            _log.info("%s", text)
