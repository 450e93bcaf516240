"""Registers a controller that does not lead with the active one, until the log has it (KIP-919).

Owns when to retry. `controller.brokers.registrations` decides what is registered, and whether it is due; the
active controller writes its own registration itself.
"""

from __future__ import annotations

import asyncio
import logging
import random

from metaquorum.controller.brokers.registrations import own_registration
from metaquorum.controller.node import ControllerNode
from metaquorum.metadata.errors import ApiError
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.requests.settings import RegisterControllerRequest
from metaquorum.runtime.backoff import Backoff, BackoffPolicy
from metaquorum.runtime.client.admin import AdminClient, ClientError
from metaquorum.runtime.client.voters import register_controller

RETRY = BackoffPolicy(initial_ms=250, max_ms=10_000)

_log = logging.getLogger(__name__)


class SelfRegistration:
    """`client` sends requests to the voters. Call `poke` after every step: it costs nothing while nothing is
    due."""

    def __init__(self, node: ControllerNode, client: AdminClient, rng: random.Random) -> None:
        self._node = node
        self._client = client
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
        await self._client.close()

    def _due(self) -> RegisterControllerRequest | None:
        node = self._node
        if node.active is not None or node.raft.leader_id in {None, node.config.node_id}:
            return None
        return own_registration(node.ledger.committed.image, node.config, node.incarnation_id)

    async def _register(self) -> None:
        backoff = Backoff(RETRY, self._rng)
        while (request := self._due()) is not None:
            try:
                await register_controller(self._client, request)
            except (ApiError, ClientError) as error:
                _log.info("controller %d is not registered yet: %s", request.controller_id, error)
            # An accepted registration comes back through the log; until then only look again.
            await asyncio.sleep(backoff.failed(0) / 1000)
