"""The gRPC health service (grpc.health.v1), which follows a node's state, and the call that queries it.

SERVING means that this node takes part in a quorum that makes progress: a controller that leads actively
(check-quorum ends its leadership if the majority stops fetching), or that follows, has fetched from the
leader recently and knows the high watermark; a broker that is unfenced.
"""

from __future__ import annotations

import asyncio
from typing import Any

import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from metaquorum.network.tls import TlsMaterial
from metaquorum.rpc.channels import open_channel
from metaquorum.rpc.reach import UNREADABLE, Reasons

SERVICES = ("", "metaquorum.v1.Admin", "metaquorum.v1.Metadata")
"""The service names that clients can query; the empty one means the whole process."""


class Health:
    """Call `update` after every step of the node; watchers are only notified of changes."""

    def __init__(self, server: Any) -> None:
        self._servicer: Any = health.aio.HealthServicer()  # type: ignore[attr-defined]
        self._serving: bool | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)

    def update(self, serving: bool) -> None:
        """Sets the state; does nothing if it has not changed."""
        if serving is self._serving:
            return
        self._serving = serving
        status = (
            health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
        )
        task = asyncio.get_running_loop().create_task(self._set(status))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @property
    def is_serving(self) -> bool:
        """The state that was set last."""
        return self._serving is True

    async def _set(self, status: int) -> None:
        for service in SERVICES:
            await self._servicer.set(service, status)


async def health_problem(address: tuple[str, int], *, timeout_ms: int, tls: TlsMaterial | None = None) -> str:
    """Why the node at this address does not serve; empty if it does."""
    channel = open_channel(*address, tls)
    try:
        request = health_pb2.HealthCheckRequest()
        answer = await health_pb2_grpc.HealthStub(channel).Check(request, timeout=timeout_ms / 1000)
    except grpc.aio.AioRpcError as error:
        return await Reasons(tls).of(error, address)
    finally:
        await channel.close(None)
    if answer is None:
        return UNREADABLE
    return "" if answer.status == health_pb2.HealthCheckResponse.SERVING else "it is not ready yet"
