"""How many partitions a client may create and delete (KIP-599): a bucket of tokens per quota.

A partition takes a token, and tokens come back at the rate of the quota. Owns the remaining tokens, which
only one active controller knows and which are gone with it, as in Kafka. Does not know
requests: a decision takes from an `Allowance`; the buckets change when its batch has been appended.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.requests.arrival import Mutator
from metaquorum.metadata.settings.quotas import MUTATIONS, QuotaKey, quota_of

KEPT_BUCKETS = 10_000
"""The number of buckets kept: beyond it, the least recently used ones are forgotten, and are full again."""


@dataclass(slots=True, kw_only=True)
class Allowance:
    """What one request may take. `strict`: nothing more once the tokens are below zero; otherwise everything,
    and the client waits."""

    tokens: float = inf
    rate: float = inf
    strict: bool = False
    taken: int = 0
    refused: bool = False

    def refusal(self, partitions: int) -> tuple[ErrorCode, str] | None:
        """Takes one token per partition, or returns why not. The last topic may overdraw the tokens, as in
        Kafka: otherwise no client could create a topic with more partitions than its bucket holds."""
        if self.strict and self.tokens < 0:
            self.refused = True
            text = f"the quota {MUTATIONS} is used up: retry in {self.wait_ms} ms"
            return ErrorCode.THROTTLING_QUOTA_EXCEEDED, text
        self.tokens -= partitions
        self.taken += partitions
        return None

    @property
    def wait_ms(self) -> int:
        """How long until the tokens are back at zero."""
        return max(1, round(1_000 * -self.tokens / self.rate)) if self.tokens < 0 else 0

    @property
    def throttle_ms(self) -> int:
        """How long the client has to wait. A strict one waits only if it was refused."""
        return self.wait_ms if self.refused or (self.taken and not self.strict) else 0


@dataclass(slots=True)
class _Bucket:
    tokens: float
    at_ms: int


class Mutations:
    """The buckets of all clients; each holds the tokens of `span_ms`, and starts full."""

    def __init__(self, image: Callable[[], MetadataImage], span_ms: int) -> None:
        self._image = image
        self._span_ms = span_ms
        self._buckets: OrderedDict[QuotaKey, _Bucket] = OrderedDict()

    def __len__(self) -> int:
        return len(self._buckets)

    def allowance(self, mutator: Mutator | None, now_ms: int) -> Allowance:
        """What a client may take now: everything, if it has no quota."""
        found = mutator and quota_of(self._image(), MUTATIONS, mutator.user, mutator.client_id)
        if not mutator or not found:
            return Allowance()
        rate, key = found
        bucket = self._buckets.get(key)
        full = rate * self._span_ms / 1_000
        tokens = full
        if bucket is not None:
            tokens = min(full, bucket.tokens + rate * (now_ms - bucket.at_ms) / 1_000)
        return Allowance(tokens=tokens, rate=rate, strict=mutator.strict)

    def take(self, mutator: Mutator, partitions: int, now_ms: int) -> None:
        """The tokens taken from an allowance are used up."""
        allowance = self.allowance(mutator, now_ms)
        found = quota_of(self._image(), MUTATIONS, mutator.user, mutator.client_id)
        if found is None:
            return
        self._buckets[found[1]] = _Bucket(allowance.tokens - partitions, now_ms)
        self._buckets.move_to_end(found[1])
        if len(self._buckets) > KEPT_BUCKETS:
            self._buckets.popitem(last=False)
