"""An observing controller requests automatically to be made a voter (controller.quorum.auto.join.enable).

It asks in Kafka's protocol, so that a controller of Apache Kafka may lead. The leader decides whether the
node has nearly caught up, and whether a change may begin.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from typing import Protocol

from metaquorum.clients.admin.cluster import add_voter, describe_voters, remove_voter
from metaquorum.clients.kafka.cluster import KafkaClient
from metaquorum.clients.quorum.admin import CHANGE_TIMEOUT_MS
from metaquorum.clients.search import ClientError
from metaquorum.controller import voters
from metaquorum.controller.brokers.brokers import own_registration
from metaquorum.controller.node import ControllerNode
from metaquorum.controller.server.voter_changes import VoterProbe
from metaquorum.metadata.errors import ApiError
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.requests.common import AddRaftVoterRequest, RemoveRaftVoterRequest
from metaquorum.metadata.requests.settings import RegisterControllerRequest
from metaquorum.network.backoff import Backoff, BackoffPolicy
from metaquorum.raft.core import RaftCore
from metaquorum.raft.voters import VoterNode
from metaquorum.rpc.controllers import address_of

RETRY = BackoffPolicy(initial_ms=250, max_ms=5_000)
PROBE_TIMEOUT_MS = 1_000
"""How long a voter with this node's id may take to identify itself."""

_log = logging.getLogger(__name__)


ALONE_S = 5.0
"""How long no voters may be known before a warning."""


class Joining:
    """`client` asks the leader, `probe` asks who listens at another voter's `listener`. Call `poke` after
    every step: it costs nothing while nothing is due. If not `enabled`, one line says how to make this node a
    voter."""

    def __init__(
        self,
        raft: RaftCore,
        client: KafkaClient,
        probe: VoterProbe,
        listener: str,
        rng: random.Random,
        *,
        enabled: bool,
    ) -> None:
        self._raft = raft
        self._client = client
        self._probe = probe
        self._listener = listener
        self._rng = rng
        self._enabled = enabled
        silent_ms = 2 * raft.state.config.check_quorum_ms
        self._joiner = voters.Joiner(raft, silent_ms=silent_ms, timeout_ms=CHANGE_TIMEOUT_MS)
        self._task: asyncio.Task[None] | None = None
        self._said = ""
        self._alone_since_s: float | None = None

    def poke(self) -> None:
        """Starts a request if one is due and none is in progress."""
        if not voters.observes(self._raft):
            self._look_for_voters()
            return
        if self._task is not None and not self._task.done():
            return
        if self._enabled and voters.may_join(self._raft):
            self._task = asyncio.get_running_loop().create_task(self._join())
        elif self._raft.node_id not in self._raft.voters or self._raft.kraft_version >= 1:
            # A static voter with another directory logs that itself.
            self._say(voters.how_to_join(self._raft))

    def _look_for_voters(self) -> None:
        """Warns, after some seconds, if nothing names voters: perhaps all were formatted to join."""
        if self._raft.voters:
            self._alone_since_s = None
            return
        now_s = asyncio.get_running_loop().time()
        if self._alone_since_s is None:
            self._alone_since_s = now_s
        elif now_s - self._alone_since_s >= ALONE_S:
            self._alone_since_s = math.inf  # one line
            _log.warning(
                "controller %d has found no controller that has voters: in a new cluster, all of which was "
                "formatted with --no-initial-controllers, format one with --standalone, or all with the same "
                "--initial-controllers; else check controller.quorum.bootstrap.servers",
                self._raft.node_id,
            )

    async def close(self) -> None:
        """Stops sending requests."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _join(self) -> None:
        backoff, node_id = Backoff(RETRY, self._rng), self._raft.node_id
        while voters.may_join(self._raft):
            try:
                await self._ask()
            except ApiError as error:
                self._say(voters.not_yet(node_id, error))
            except ClientError as error:
                self._say(f"controller {node_id} is not a voter yet: {error}")
            await asyncio.sleep(backoff.failed(0) / 1000)

    async def _ask(self) -> None:
        """Sends one change, or logs why it has to wait."""
        node_id, quorum, answers = self._raft.node_id, None, False
        entry = self._joiner.entry
        if entry is not None:
            quorum = await describe_voters(self._client, self._raft.state.config.check_quorum_ms)
            answers = await self._answers(entry)
        now_ms = int(asyncio.get_running_loop().time() * 1000)
        match self._joiner.wanted(now_ms, quorum, answers=answers):
            case str() as problem:
                self._say(problem)
            case RemoveRaftVoterRequest() as removal:
                await remove_voter(self._client, removal)
                _log.info("controller %d: its entry with a directory that it lost was removed", node_id)
            case AddRaftVoterRequest() as addition:
                await add_voter(self._client, addition)
                _log.info("controller %d is a voter", node_id)

    async def _answers(self, entry: VoterNode) -> bool:
        """Whether a voter answers where its entry says. Without pre-votes (Apache Kafka before 4.0), a node
        that listens there counts as that voter."""
        address = address_of(entry.endpoints, self._listener)
        if address is None:
            return False
        voter = voters.voter_record(entry)
        return not isinstance(
            await self._probe.ask(voter, [(address.host, address.port)], PROBE_TIMEOUT_MS), ApiError
        )

    def _say(self, text: str) -> None:
        if text != self._said:
            self._said = text
            _log.info("%s", text)


# Registers a controller that does not lead with the active one, until the log has it (KIP-919).
# `controller.brokers.brokers` decides what is registered, and whether it is due; the active
# controller writes its own registration itself.

REGISTRATION_RETRY = BackoffPolicy(initial_ms=250, max_ms=10_000)


class RegistrationWay(Protocol):
    """The way of a registration."""

    async def register(self, request: RegisterControllerRequest) -> None:
        """Raises ApiError or ClientError."""


class SelfRegistration:
    """`registrar` sends requests to the leader. Call `poke` after every step: it costs nothing while nothing
    is due."""

    def __init__(self, node: ControllerNode, registrar: RegistrationWay, rng: random.Random) -> None:
        self._node = node
        self._registrar = registrar
        self._rng = rng
        self._task: asyncio.Task[None] | None = None
        self._seen: tuple[MetadataImage, int | None] | None = None

    def poke(self) -> None:
        """Starts to register if that is due and not in progress."""
        image, leader_id = self._node.ledger.committed.image, self._node.raft.leader_id
        if self._seen is not None and self._seen[0] is image and self._seen[1] == leader_id:
            return
        self._seen = image, leader_id
        if (self._task is None or self._task.done()) and self._due() is not None:
            self._task = asyncio.get_running_loop().create_task(self._register())

    async def close(self) -> None:
        """Stops sending requests."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _due(self) -> RegisterControllerRequest | None:
        node = self._node
        if node.active is not None or node.raft.leader_id in {None, node.config.node_id}:
            return None
        return own_registration(node.ledger.committed.image, node.config, node.incarnation_id)

    async def _register(self) -> None:
        backoff = Backoff(REGISTRATION_RETRY, self._rng)
        while (request := self._due()) is not None:
            try:
                await self._registrar.register(request)
            except (ApiError, ClientError) as error:
                _log.info("controller %d is not registered yet: %s", request.controller_id, error)
            # An accepted registration comes back through the log; until then only look again.
            await asyncio.sleep(backoff.failed(0) / 1000)
