"""States of the log as this node has them: the committed one, and those that wait for their commit.

Owns the order between them and the answers that wait with them. Knows no decisions and no Raft: what is
committed comes as an offset. Everything is bounded by who pushes.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from metadata.errors import ApiError, InvariantViolation
from metadata.image import MetadataImage
from metadata.replay import ReplayState
from metadata.requests import ControllerResponse

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

    def __init__(self, committed: ReplayState) -> None:
        self.committed = committed
        self.pending: deque[Pending] = deque()
        self.newest: MetadataImage = committed.newest
        """What the next decision is made on: the last pending image, or the committed one."""
        self.replies_waiting = 0
        self.committed_bytes = 0
        """Bytes of batches committed since somebody set this to 0 (the snapshot policy does)."""

    @property
    def newest_state(self) -> ReplayState:
        return self.pending[-1].state if self.pending else self.committed

    @property
    def committed_offset(self) -> int:
        """All below it is in the committed state (exclusive), the inside of a transaction included."""
        return self.committed.end_offset

    def push(self, entry: Pending) -> None:
        """An appended batch. Raises InvariantViolation when it does not follow the newest."""
        end = self.newest_state.end_offset
        if entry.end_offset <= end or entry.state.end_offset != entry.end_offset:
            raise InvariantViolation(
                f"a batch that ends at {entry.end_offset} cannot follow one that ends at {end}"
            )
        self.pending.append(entry)
        self.newest = entry.state.newest
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
            self.committed = entry.state
            self.committed_bytes += entry.size_bytes
            replies += entry.replies
        self.replies_waiting -= len(replies)
        return replies

    def drop(self) -> list[int]:
        """Leadership is lost: what is pending may or may not come to be. The keys that waited for it."""
        keys = [key for entry in self.pending for key, _ in entry.replies]
        self.pending.clear()
        self.replies_waiting = 0
        self.newest = self.committed.newest
        return keys

    def advance(self, state: ReplayState, size_bytes: int) -> None:
        """A follower replayed committed batches, or loaded a snapshot (`size_bytes` 0)."""
        if self.pending:
            raise InvariantViolation("a node with pending batches of its own must not replay others' batches")
        self.committed = state
        self.newest = state.newest
        self.committed_bytes += size_bytes
