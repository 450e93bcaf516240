"""Sends registrations and heartbeats to a controller: one at a time, each with one outcome.

Owns the channels to the controllers, and the streams that carry heartbeats. Does not decide where a request
goes, or what an answer means: the broker node does.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any

import grpc.aio
from msgspec.structs import replace

from metaquorum.broker.events import (
    ControllerRequestFailed,
    ControllerResponseArrived,
    LifecycleResponse,
    SendToController,
)
from metaquorum.broker.server.calls import Calls
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.requests.common import BrokerHeartbeatRequest
from metaquorum.proto.broker_pb2_grpc import BrokerLifecycleStub
from metaquorum.runtime.api import brokers as codec
from metaquorum.runtime.rpc.channels import END_OF_STREAM, open_channel
from metaquorum.runtime.rpc.raft_client import Addresses, PeerAddress
from metaquorum.runtime.rpc.reach import UNREADABLE, Reasons
from metaquorum.runtime.tls.material import TlsMaterial

FAILURES = (
    grpc.aio.AioRpcError,
    grpc.aio.UsageError,
    asyncio.InvalidStateError,
    TimeoutError,
    ConnectionError,
)
"""Errors that end a call or a stream when the controller, or the connection to it, is gone."""

FAREWELL_RETRY_S = 0.05
FAREWELL_TRIES_MIN = 4
"""A farewell that is not accepted goes to another controller: at once after an answer, or after a part of the
remaining time."""

_log = logging.getLogger(__name__)

Report = Callable[[ControllerResponseArrived | ControllerRequestFailed], None]


class ControllerCalls:
    """`send` ends in exactly one report, and never calls back before it returned."""

    def __init__(self, controllers: Addresses, report: Report, tls: TlsMaterial | None) -> None:
        self._controllers = controllers
        self._report = report
        self._tls = tls
        self._reasons = Reasons(tls)
        self._channels: dict[int, tuple[PeerAddress, grpc.aio.Channel]] = {}
        self._heartbeats: dict[int, Any] = {}
        self._calls = Calls()

    def send(self, effect: SendToController) -> None:
        self._calls.spawn(self._call(effect))

    async def farewell(self, first: int, request: BrokerHeartbeatRequest, timeout_s: float) -> bool:
        """Sends this broker's last heartbeat to the active controller, trying `first` first. Returns True if
        it was accepted. Requests in progress are dropped first: none of them may arrive later."""
        await self._calls.end()
        target = first
        once = SendToController(
            target=first,
            correlation_id=0,
            request=request,
            timeout_ms=int(timeout_s * 1000 / FAREWELL_TRIES_MIN),
            attempt=1,
        )
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while True:
                    hint = None
                    try:
                        answer = await self._ask(replace(once, target=target))
                    except FAILURES:
                        await self._drop(target)
                    else:
                        if not isinstance(answer, ApiError):
                            return True
                        if answer.code is not ErrorCode.NOT_CONTROLLER:
                            _log.warning("controller %d refused the shutdown notice: %s", target, answer)
                            return False
                        hint = answer.leader_hint
                    target = self._next(target, hint)
                    await asyncio.sleep(FAREWELL_RETRY_S)
        return False

    async def close(self) -> None:
        await self._calls.end()
        await asyncio.gather(*(channel.close(None) for _, channel in self._channels.values()))

    def _next(self, asked: int, hint: int | None) -> int:
        """The controller to try after `asked`, which is not the active one: the one it named, or the next."""
        if hint is not None and hint != asked and self._controllers.get(hint) is not None:
            return hint
        known = list(self._controllers)
        return known[(known.index(asked) + 1) % len(known)] if asked in known else known[0]

    async def _call(self, effect: SendToController) -> None:
        try:
            response = await self._ask(effect)
        except FAILURES as error:
            # The connection may be stuck in the backoff of a dead peer: the next attempt gets a new one.
            await self._drop(effect.target)
            reason = str(error)
            if isinstance(error, grpc.aio.AioRpcError):
                reason = f"{error.code().name}: {error.details()}"
                address = self._controllers.get(effect.target)
                if address is not None:
                    self._reasons.tell(f"controller {effect.target}", error, (address.host, address.port))
            elif isinstance(error, TimeoutError):
                reason = f"no answer within {effect.timeout_ms} ms"
            self._report(
                ControllerRequestFailed(
                    target=effect.target, correlation_id=effect.correlation_id, reason=reason
                )
            )
        else:
            self._report(
                ControllerResponseArrived(
                    source=effect.target, correlation_id=effect.correlation_id, response=response
                )
            )

    async def _ask(self, effect: SendToController) -> LifecycleResponse | ApiError:
        stub: Any = BrokerLifecycleStub(await self._channel(effect.target))
        timeout_s = effect.timeout_ms / 1000
        if isinstance(effect.request, BrokerHeartbeatRequest):
            request = codec.HEARTBEAT.to_pb(effect.request)
            async with asyncio.timeout(timeout_s):
                answer = await self._beat(stub, effect.target, request)
            return codec.HEARTBEAT_ANSWER.answer_from_pb(answer)
        answer = await stub.Register(codec.REGISTER.to_pb(effect.request), timeout=timeout_s)
        if answer is None:
            raise ConnectionError(f"controller {effect.target}: {UNREADABLE}")
        return codec.REGISTERED.answer_from_pb(answer)

    async def _beat(self, stub: Any, target: int, request: Any) -> Any:
        """One heartbeat on the stream to a controller. After a failure the stream is dropped with its channel
        and never used again, so that no late answer is taken for that of another heartbeat."""
        call = self._heartbeats.pop(target, None)
        if call is None:
            call = stub.Heartbeats()
        await call.write(request)
        answer = await call.read()
        if answer is END_OF_STREAM:
            raise ConnectionError(f"controller {target} ended the stream of heartbeats")
        if answer is None:
            raise ConnectionError(f"controller {target}: {UNREADABLE}")
        self._heartbeats[target] = call
        return answer

    async def _channel(self, target: int) -> grpc.aio.Channel:
        address = self._controllers.get(target)
        if address is None:
            raise ConnectionError(f"controller {target} has no known address")
        known = self._channels.get(target)
        if known is not None and known[0] != address:
            await self._drop(target)  # it moved
            known = None
        if known is None:
            known = address, open_channel(address.host, address.port, self._tls)
            self._channels[target] = known
        return known[1]

    async def _drop(self, target: int) -> None:
        self._heartbeats.pop(target, None)
        known = self._channels.pop(target, None)
        if known is not None:
            await known[1].close(None)
