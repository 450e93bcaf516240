"""A controller that observes asks to be made a voter by itself (controller.quorum.auto.join.enable).

Owns when to ask, and that the entry of a directory that this node lost is removed first, as in Kafka 4.2. The
leader decides whether the node is near enough to its end, and whether a change may begin.
"""

from __future__ import annotations

import asyncio
import logging
import random

from metaquorum.metadata.errors import ApiError
from metaquorum.metadata.records.control import KRaftVersionFeature, Voter, VoterEndpoint
from metaquorum.metadata.requests.voters import AddRaftVoterRequest, RemoveRaftVoterRequest
from metaquorum.raft.core import RaftCore
from metaquorum.runtime.backoff import Backoff, BackoffPolicy
from metaquorum.runtime.client.admin import AdminClient, ClientError
from metaquorum.runtime.client.voters import CHANGE_TIMEOUT_MS, add_raft_voter, remove_raft_voter
from metaquorum.storage.uuids import ZERO_UUID

RETRY = BackoffPolicy(initial_ms=250, max_ms=5_000)

_log = logging.getLogger(__name__)


class Joining:
    """`client` asks the quorum and is closed by its owner. Call `poke` after every step: it costs nothing
    while nothing is due. Not `enabled`: one line says which command makes this node a voter."""

    def __init__(self, raft: RaftCore, client: AdminClient, rng: random.Random, *, enabled: bool) -> None:
        self._raft = raft
        self._client = client
        self._rng = rng
        self._enabled = enabled
        self._task: asyncio.Task[None] | None = None
        self._said = ""

    def poke(self) -> None:
        """Begins to ask if that is due and not under way."""
        if not self._due() or (self._task is not None and not self._task.done()):
            return
        if self._enabled:
            self._task = asyncio.get_running_loop().create_task(self._join())
        else:
            node_id = self._raft.node_id
            self._say(
                f"controller {node_id} only observes; metaquorum quorum add-voter {node_id} changes that"
            )

    async def close(self) -> None:
        """Stops asking."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _due(self) -> bool:
        """It observes a leader of dynamic voters, and has everything that it knows to be committed."""
        raft = self._raft
        return (
            raft.is_observer
            and raft.kraft_version >= 1
            and raft.leader_id is not None
            and 0 <= raft.high_watermark <= raft.log_end_offset
        )

    async def _join(self) -> None:
        backoff = Backoff(RETRY, self._rng)
        while self._due():
            try:
                await self._ask()
            except (ApiError, ClientError) as error:
                self._say(f"controller {self._raft.node_id} is not a voter yet: {error}")
            await asyncio.sleep(backoff.failed(0) / 1000)

    async def _ask(self) -> None:
        """One change: away with this node's lost directory, or in with this one."""
        identity = self._raft.state.identity
        lost = self._raft.voters.get(identity.node_id)
        if lost is not None:
            await remove_raft_voter(
                self._client,
                RemoveRaftVoterRequest(
                    voter_id=identity.node_id,
                    voter_directory_id=lost.directory_id or ZERO_UUID,
                    cluster_id=identity.cluster_id,
                    timeout_ms=CHANGE_TIMEOUT_MS,
                ),
            )
            _log.info("controller %d: its entry with a directory that it lost was removed", identity.node_id)
            return
        endpoints = tuple(VoterEndpoint(each.name, each.host, each.port) for each in identity.endpoints)
        supported = KRaftVersionFeature(identity.versions.lowest, identity.versions.highest)
        voter = Voter(identity.node_id, identity.directory_id, endpoints, supported)
        request = AddRaftVoterRequest(
            voter=voter, cluster_id=identity.cluster_id, timeout_ms=CHANGE_TIMEOUT_MS
        )
        await add_raft_voter(self._client, request)
        _log.info("controller %d is a voter", identity.node_id)

    def _say(self, text: str) -> None:
        if text != self._said:
            self._said = text
            _log.info("%s", text)
