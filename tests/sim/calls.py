"""Requests between simulated processes: matched with their responses, timed out, refused, abandoned.

Plays the part of the transport: a response that arrives after the timeout is dropped, a process that dies
resets its connections, and a second copy of a message is a second request, of which only the first response
counts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from metaquorum.broker.replica.events import DataRequestArrived, DataRequestCancelled
from metaquorum.controller.events import RequestArrived
from metaquorum.metadata.records.batch_cause import BatchCause
from metaquorum.raft.effects import SendRequest
from metaquorum.raft.events import (
    RaftRequestAbandoned,
    RaftRequestArrived,
    RaftRequestFailed,
    RaftResponseArrived,
)
from metaquorum.raft.messages import RaftRequest
from tests.sim.engine import Engine
from tests.sim.host import Host, Process
from tests.sim.network import Network

LATE_COPY_MS = 8_000


@dataclass(slots=True, eq=False)
class _Call:
    """One request in flight. `finish` takes the response, `fail` the reason; only the first of them
    counts."""

    source: str
    target: Host
    finish: Callable[[Any, bool], None]
    fail: Callable[[str], None]
    servers: list[tuple[Process, int]] = field(default_factory=list)
    done: bool = False


class Calls:
    """All requests of the world that have no response yet."""

    def __init__(self, engine: Engine, network: Network) -> None:
        self._engine = engine
        self.network = network
        self._next_key = 0
        self._raft: dict[int, _Call] = {}
        self._clients: dict[int, _Call] = {}
        self._data: dict[int, _Call] = {}
        self._shell: dict[int, _Call] = {}

    def raft(
        self, caller: Process, target: Host, target_id: int, effect: SendRequest, *, once: bool = False
    ) -> None:
        """Sends a Raft request; the caller gets `RaftResponseArrived` or `RaftRequestFailed`."""
        at = effect.correlation_id

        def finish(response: Any, _outright: bool) -> None:
            caller.deliver(
                lambda: RaftResponseArrived(source=target_id, correlation_id=at, response=response)
            )

        def fail(reason: str) -> None:
            caller.deliver(lambda: RaftRequestFailed(target=target_id, correlation_id=at, reason=reason))

        def arrived(process: Process, key: int) -> None:
            self._raft[key] = call
            process.deliver(lambda: RaftRequestArrived(key=key, request=effect.request))

        call = _Call(caller.host.name, target, finish, fail)
        self._start(call, arrived, effect.timeout_ms, once=once)

    def stranger(self, target: Host, request: RaftRequest) -> None:
        """A Raft request of no node; nobody waits for its response."""
        self.foreign("stranger", target, request, 1_000, lambda response, _: None, lambda reason: None)

    def foreign(
        self,
        source: str,
        target: Host,
        request: RaftRequest,
        timeout_ms: int,
        finish: Callable[[Any, bool], None],
        fail: Callable[[str], None],
        *,
        once: bool = False,
        read: Callable[[Process, int, RaftRequest], RaftRequest] = lambda process, key, request: request,
    ) -> None:
        """A Raft request of what is no process of ours. `read`: what the process that it reaches makes of
        it."""

        def arrived(process: Process, key: int) -> None:
            self._raft[key] = call
            process.deliver(lambda: RaftRequestArrived(key=key, request=read(process, key, request)))

        call = _Call(source, target, finish, fail)
        self._start(call, arrived, timeout_ms, once=once)

    def client(
        self,
        source: str,
        target: Host,
        request: Any,
        timeout_ms: int,
        finish: Callable[[Any, bool], None],
        fail: Callable[[str], None],
        *,
        once: bool = False,
    ) -> None:
        """Sends a request of a client or a broker to a controller.

        `finish` also gets whether the response was given at once, in the step that handled the request: a
        refusal then proves that nothing was written. `once`: the request never arrives twice, as on one
        connection (a second copy of a create is another create).
        """

        def arrived(process: Process, key: int) -> None:
            self._clients[key] = call
            kind = type(request).__name__.removesuffix("Request")
            cause = BatchCause(request=kind, principal=f"User:{source}")
            process.deliver(
                lambda: RequestArrived(
                    key=key, arrived_ms=process.host.monotonic_ms(), request=request, cause=cause
                )
            )

        call = _Call(source, target, finish, fail)
        self._start(call, arrived, timeout_ms, once=once)

    def data(
        self,
        source: str,
        target: Host,
        request: Any,
        timeout_ms: int,
        finish: Callable[[Any], None],
        fail: Callable[[str], None],
    ) -> None:
        """Sends a request for partition data, of a client or a follower, to a broker. It arrives once,
        perhaps long after it was sent, or never. A caller that gives up notifies the broker, if the network
        delivers that."""

        def arrived(process: Process, key: int) -> None:
            self._data[key] = call
            process.deliver(lambda: DataRequestArrived(key=key, request=request))

        call = _Call(source, target, lambda response, _outright: finish(response), fail)
        self._start(call, arrived, timeout_ms, once=True)

    def answered_data(self, key: int, response: Any) -> None:
        self._answered(self._data.pop(key, None), response)

    def shell(
        self,
        source: str,
        target: Host,
        arrive: Callable[[Process, Callable[[Any], None]], None],
        timeout_ms: int,
        finish: Callable[[Any], None],
        fail: Callable[[str], None],
    ) -> None:
        """Sends a request to the shell in front of a broker's node: `arrive` gets the process and a function
        for the response. The request arrives once, perhaps late, or never."""

        def arrived(process: Process, key: int) -> None:
            self._shell[key] = call
            arrive(process, lambda answer: self._answered(self._shell.pop(key, None), answer))

        call = _Call(source, target, lambda response, _outright: finish(response), fail)
        self._start(call, arrived, timeout_ms, once=True)

    def _start(
        self, call: _Call, arrived: Callable[[Process, int], None], timeout_ms: int, *, once: bool = False
    ) -> None:
        def reach() -> None:
            process = call.target.process
            if process is None or not process.alive:
                self._send_back(call, lambda: call.fail("connection refused"))
                return
            self._next_key += 1
            call.servers.append((process, self._next_key))
            arrived(process, self._next_key)

        self.network.send(call.source, call.target.name, reach, once=once)
        if not once and self.network.repeats_late():
            # A copy that was delayed for seconds: its sender may have restarted meanwhile.
            self._engine.after(self._engine.rng.random() * LATE_COPY_MS, reach)
        self._engine.after(timeout_ms, lambda: self._expire(call))

    def answered_raft(self, key: int, response: Any) -> None:
        self._answered(self._raft.pop(key, None), response)

    def answered_client(self, key: int, response: Any, *, outright: bool) -> None:
        self._answered(self._clients.pop(key, None), response, outright)

    def _answered(self, call: _Call | None, response: Any, outright: bool = False) -> None:
        if call is not None:
            self._send_back(call, lambda: call.finish(response, outright and len(call.servers) == 1))

    def _send_back(self, call: _Call, deliver: Callable[[], None]) -> None:
        def once() -> None:
            if not call.done:
                call.done = True
                deliver()

        self.network.send(call.target.name, call.source, once)

    def _expire(self, call: _Call) -> None:
        if not call.done:
            call.done = True
            call.fail("timed out")
        for process, key in call.servers:
            self._clients.pop(key, None)
            self._shell.pop(key, None)
            if self._raft.pop(key, None) is not None:
                process.deliver(lambda key=key: RaftRequestAbandoned(key=key))
            if self._data.pop(key, None) is not None:
                cancelled = DataRequestCancelled(key=key)
                self.network.send(
                    call.source,
                    call.target.name,
                    lambda process=process, cancelled=cancelled: process.deliver(lambda: cancelled),
                    once=True,
                )

    def process_died(self, process: Process) -> None:
        """The process's connections are reset: callers that wait for it learn that, if the network delivers
        the reset."""
        for table in (self._raft, self._clients, self._data, self._shell):
            for key, call in sorted(table.items()):
                if any(server is process for server, _ in call.servers):
                    del table[key]
                    self._send_back(call, lambda call=call: call.fail("connection reset"))
