"""Requests as they come to a controller node: who is answered now, who waits, who is told to come back.

Owns what waits for this node to become active, and reads until their round is over and their offset applied.
Decides nothing: writes go to the active controller.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, assert_never

from metaquorum.controller.active.active import WRITE_REQUESTS, WriteRequest
from metaquorum.controller.active.workbench import busy
from metaquorum.controller.events import RequestArrived
from metaquorum.controller.queries import describe_quorum, furthest_voter, image_response, not_controller
from metaquorum.controller.read_queue import ReadQueue
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.requests.common import (
    BrokerHeartbeatRequest,
    DescribeQuorumRequest,
    Done,
    ReadImageRequest,
    TransferLeadershipRequest,
)

if TYPE_CHECKING:
    from metaquorum.controller.node import ControllerNode


class Reception:
    """The node hands over each request, and says when it became active and when reads can be served."""

    def __init__(self, node: ControllerNode) -> None:
        self._node = node
        self._waiting: deque[RequestArrived] = deque()
        self._reads = ReadQueue()

    def take(self, event: RequestArrived) -> None:
        """One request, in the order of arrival."""
        node = self._node
        node.counters.requests += 1
        node.sessions.note_arrival(event.arrived_ms)
        request = event.request
        if isinstance(request, WRITE_REQUESTS):
            self._write(event, request)
            return
        match request:
            case ReadImageRequest(linearizable=False):
                node.reply(event.key, image_response(node))
            case ReadImageRequest():
                self._read(event)
            case DescribeQuorumRequest():
                leads = node.raft.is_leader
                node.reply(event.key, describe_quorum(node) if leads else not_controller(node))
            case TransferLeadershipRequest(target_id=target_id):
                self._transfer(event.key, target_id)
            case _:
                assert_never(request)

    def serve_waiting(self) -> None:
        """Takes again what waited for this node to become active, or for the end of a transfer."""
        waiting, self._waiting = self._waiting, deque()
        for arrived in waiting:
            self.take(arrived)

    def confirm_read(self, token: int, offset: int) -> None:
        """The round of a read is over: it may be served once everything below `offset` is applied."""
        self._reads.confirm(token, offset)
        self.serve_reads()

    def fail_read(self, token: int) -> None:
        """This node does not lead any more, as far as it knows."""
        self._node.reply(self._reads.fail(token), not_controller(self._node))

    def serve_reads(self) -> None:
        """Reads whose round is over and whose offset is applied; the others stay in order."""
        for key in self._reads.take(self._node.ledger.committed_offset):
            self._node.reply(key, image_response(self._node))

    def drop(self) -> list[int]:
        """Leadership is lost: keys of what waited here. Raft fails the reads whose round is not over."""
        keys = [arrived.key for arrived in self._waiting] + self._reads.drop_ready()
        self._waiting.clear()
        return keys

    # ---- parts

    def _write(self, event: RequestArrived, request: WriteRequest) -> None:
        node = self._node
        active = node.active
        if type(request) is BrokerHeartbeatRequest:
            node.counters.heartbeats += 1
        if active is None or node.raft.transferring:
            # What is appended during a transfer would only keep the successor from catching up.
            self._wait_for_activation(event)
        elif node.ledger.replies_waiting >= node.config.answers_max:
            self._refuse_busy(event.key)
        else:
            active.handle(event, request, node.now_ms)

    def _read(self, event: RequestArrived) -> None:
        node = self._node
        if node.active is None:
            self._wait_for_activation(event)
        elif len(self._reads) >= node.config.answers_max:
            self._refuse_busy(event.key)
        else:
            node.absorb(node.raft.request_read(node.now_ms, self._reads.begin(event.key)))

    def _wait_for_activation(self, event: RequestArrived) -> None:
        node = self._node
        if not node.is_in_office:
            node.reply(event.key, not_controller(node))
        elif len(self._waiting) >= node.config.waiting_requests_max:
            self._refuse_busy(event.key)
        else:
            self._waiting.append(event)

    def _refuse_busy(self, key: int) -> None:
        self._node.counters.refused_busy += 1
        self._node.reply(key, busy("too many requests wait for a commit"))

    def _transfer(self, key: int, target_id: int | None) -> None:
        node = self._node
        if not node.raft.is_leader:
            node.reply(key, not_controller(node))
            return
        target = furthest_voter(node) if target_id is None else target_id
        refusal = "there is no other voter" if target is None else node.raft.transfer_refusal(target)
        if target is None or refusal is not None:
            node.reply(key, ApiError(ErrorCode.INVALID_REQUEST, f"leadership stays here: {refusal}"))
            return
        node.reply(key, Done())
        node.absorb(node.raft.transfer_leadership(node.now_ms, target))
