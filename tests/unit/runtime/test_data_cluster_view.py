"""What a client knows of a cluster comes back by itself after nodes that did not answer."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import cast

from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.runtime.client.admin import Address
from metaquorum.runtime.data_client.cluster_view import ClusterView
from metaquorum.runtime.data_client.connections import Connections, LinkError, MetadataAnswer

NODES: tuple[Address, ...] = (("a", 1), ("b", 2))


class Nodes:
    """Gives what `script` says, in turn, and then good answers."""

    def __init__(self, script: list[Exception | ApiError]) -> None:
        self.script = script
        self.asked = 0

    async def metadata(
        self, address: Address, names: Sequence[str], *, timeout_ms: int, stale: bool = False
    ) -> MetadataAnswer | ApiError:
        self.asked += 1
        await asyncio.sleep(0)
        if self.script:
            outcome = self.script.pop(0)
            if isinstance(outcome, LinkError):
                raise outcome
            assert isinstance(outcome, ApiError)
            return outcome
        return MetadataAnswer(brokers=(), topics=(), unknown_names=frozenset(), linearizable=False)


async def test_a_refresh_that_nobody_answered_is_tried_again_without_being_asked_for() -> None:
    nodes = Nodes(
        [LinkError("gone"), ApiError(ErrorCode.BROKER_NOT_AVAILABLE, "fenced"), LinkError("gone again")]
    )
    refreshed = asyncio.Event()
    view = ClusterView(cast(Connections, nodes), NODES, rng=random.Random(1), changed=refreshed.set)
    view._names.add("orders")
    task = asyncio.create_task(view.run())
    try:
        view.want_refresh()  # once: whoever asked has nothing else to wake up for
        async with asyncio.timeout(25):  # far below the age at which knowledge is renewed anyway
            await refreshed.wait()
    finally:
        task.cancel()
    assert nodes.asked == 4
