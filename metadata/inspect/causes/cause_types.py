"""What a derived cause is, what its rule may look at, and the wording for what the log does not show.

Owns no rule. Knows steps and the feed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

import msgspec

from metaquorum.metadata.image.types import BrokerRegistration
from metaquorum.metadata.inspect.changes.change_steps import NOOP_LEVEL, BatchChanges, BrokerStory, Place
from metaquorum.metadata.inspect.log.points import utc_text

__all__ = ["NOOP_LEVEL", "SHUTDOWN_LEVEL", "SPLIT_MS", "Cause", "Scene", "cannot_tell", "ids"]

SHUTDOWN_LEVEL = 7
"""metadata.version 3.3-IV3: from this level on the log records that a broker is in
controlled shutdown (KIP-841)."""

SPLIT_MS = 1_000
"""The batches of one split fence or shutdown of a broker are at most this far apart."""


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """One derived cause.

    `rule` is a key of `cause_rules.RULES`. `offset` is that of the record that is the cause, if it is a
    different record. `broker_id` is the broker that the cause is about. If not `certain`, another history
    leaves the same records, and the text gives both readings."""

    rule: str
    text: str
    offset: int | None = None
    broker_id: int | None = None
    certain: bool = True


class LogSoFar(Protocol):
    """What the log said up to and including a batch: ChangeFeed, or another reader of the whole log."""

    @property
    def stories(self) -> Mapping[int, BrokerStory]:
        """What the log last said about each broker."""

    @property
    def brokers(self) -> Mapping[int, BrokerRegistration]:
        """The registered brokers."""

    @property
    def is_known(self) -> bool:
        """Whether the state is known, rather than only what records say on their own."""

    @property
    def metadata_version(self) -> int:
        """The metadata.version in force."""

    def topic_config(self, topic: str, key: str) -> str | None:
        """A topic's setting according to the log: its own, else the brokers' default, else None."""

    def ask_before(self, from_ms: int | None = None) -> None:
        """Called by a rule that may lack something from before the first batch; it matters
        only from `from_ms` on."""


class Scene(msgspec.Struct, frozen=True, kw_only=True):
    """What a rule may look at besides the step: the batch, and the reader that has just applied it."""

    batch: BatchChanges
    feed: LogSoFar

    def story(self, broker_id: int) -> BrokerStory:
        """What the log last said about a broker."""
        return self.feed.stories.get(broker_id) or BrokerStory()

    def since(self, place: Place | None) -> str:
        if place is None:
            self.feed.ask_before()
            return ""
        return f"{place[0]} ({utc_text(place[1])})"

    def is_just_before(self, place: Place | None, within_ms: int = SPLIT_MS) -> bool:
        """Whether a place is at most `within_ms` before this batch, by the clock. False if the
        clock ran backwards."""
        if place is None:
            self.feed.ask_before(self.batch.time_ms - within_ms)
            return False
        return 0 <= self.batch.time_ms - place[1] <= within_ms

    @property
    def metadata_version(self) -> int:
        """The metadata.version in force: it decides what a controller records."""
        return self.feed.metadata_version


def cannot_tell(*readings: tuple[str, str]) -> str:
    """The sentence for records that fit several histories: each reading with what would confirm it."""
    return "the log does not show which: " + ", or ".join(
        f"{what} (to confirm: {proof})" for what, proof in readings
    )


def ids(listed: Iterable[int]) -> str:
    """`[1,2,3]`."""
    return "[" + ",".join(map(str, listed)) + "]"
