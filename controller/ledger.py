"""States of the log as this node has them: the committed one, and those that wait for their commit.

Owns what is pending and the answers that wait with it; the replica has the committed state. Knows no
decisions and no Raft: what is committed comes as an offset. Everything is bounded by who pushes.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from metaquorum.metadata.errors import ApiError, InvariantViolation
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.replay import ReplayState
from metaquorum.metadata.replica import MetadataReplica
from metaquorum.metadata.requests.common import ControllerResponse

Reply = tuple[int, ControllerResponse | ApiError]
"""(request key, what to answer)."""


@dataclass(slots=True, kw_only=True)
class Pending:
    """An appended batch: the state after it, its size, and the answers that are true once it is committed."""

    end_offset: int
    state: ReplayState
    size_bytes: int
    replies: list[Reply] = field(default_factory=list)


class Ledger:
    """`committed` is below or at the high watermark; `pending` follows it batch by batch, oldest first."""

    def __init__(self, replica: MetadataReplica) -> None:
        self._replica = replica
        self.pending: deque[Pending] = deque()
        self.replies_waiting = 0

    @property
    def committed(self) -> ReplayState:
        """The replica's state."""
        return self._replica.state

    @property
    def committed_offset(self) -> int:
        """All below it is in the committed state (exclusive), the inside of a transaction included."""
        return self._replica.applied_offset

    @property
    def newest_state(self) -> ReplayState:
        """What the next batch will follow: the last pending state, or the committed one."""
        return self.pending[-1].state if self.pending else self._replica.state

    @property
    def newest(self) -> MetadataImage:
        """The image that the next decision is made on."""
        return self.newest_state.newest

    def push(self, entry: Pending) -> None:
        """An appended batch. Raises InvariantViolation when it does not follow the newest."""
        end = self.newest_state.end_offset
        if entry.end_offset <= end or entry.state.end_offset != entry.end_offset:
            raise InvariantViolation(
                f"a batch that ends at {entry.end_offset} cannot follow one that ends at {end}"
            )
        self.pending.append(entry)
        self.replies_waiting += len(entry.replies)

    def wait(self, reply: Reply) -> None:
        """The reply is true once everything appended so far is committed. Something must be pending."""
        self.pending[-1].replies.append(reply)
        self.replies_waiting += 1

    def commit(self, high_watermark: int) -> list[Reply]:
        """Everything that ends at or below the high watermark is committed; its replies, oldest first."""
        replies: list[Reply] = []
        while self.pending and self.pending[0].end_offset <= high_watermark:
            entry = self.pending.popleft()
            self._replica.advance(entry.state, entry.size_bytes)
            replies += entry.replies
        self.replies_waiting -= len(replies)
        return replies

    def drop(self) -> list[int]:
        """Leadership is lost: what is pending may or may not come to be. The keys that waited for it."""
        keys = [key for entry in self.pending for key, _ in entry.replies]
        self.pending.clear()
        self.replies_waiting = 0
        return keys
