"""Requests to a transaction coordinator and its replies, as values.

Owns their form. Knows no rule, which `state` has, and no version of Kafka's messages.
"""

from __future__ import annotations

from msgspec import Struct

from metaquorum.metadata.errors import ErrorCode

TopicPartition = tuple[str, int]


class InitProducer(Struct, frozen=True, kw_only=True):
    """InitProducerId with a transactional id. `producer_id` -1: the client has none yet. `fresh_id`: an
    unused id, in case one is needed; None: none was taken yet."""

    transactional_id: str
    timeout_ms: int
    producer_id: int = -1
    producer_epoch: int = -1
    fresh_id: int | None = None


class InitializedProducer(Struct, frozen=True):
    producer_id: int
    producer_epoch: int


class NeedsProducerId(Struct, frozen=True):
    """Send the request again, with a fresh id. Nothing has changed."""


class AddPartitions(Struct, frozen=True, kw_only=True):
    """AddPartitionsToTxn of one transactional id, and AddOffsetsToTxn; the reply is an ErrorCode.
    `verify_only`: whether the partitions are in the transaction (KIP-890); the reply is one code per
    partition."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: tuple[TopicPartition, ...]
    verify_only: bool = False


class EndTransaction(Struct, frozen=True, kw_only=True):
    """EndTxn; the reply is an ErrorCode."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    committed: bool


class MarkersWritten(Struct, frozen=True, kw_only=True):
    """Every partition of the transaction has its marker. The reply is an ErrorCode."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


class DescribeTransaction(Struct, frozen=True):
    transactional_id: str


class TransactionDescription(Struct, frozen=True, kw_only=True):
    """`start_ms` is that of the open or last transaction; -1 if there was none. `state` is Kafka's name."""

    error: ErrorCode = ErrorCode.NONE
    transactional_id: str
    state: str = ""
    timeout_ms: int = 0
    start_ms: int = -1
    producer_id: int = -1
    producer_epoch: int = -1
    partitions: tuple[TopicPartition, ...] = ()


class ListTransactions(Struct, frozen=True, kw_only=True):
    """An empty filter matches everything. `min_duration_ms` -1: however long a transaction has been open. The
    reply is a tuple of descriptions."""

    states: frozenset[str] = frozenset()
    producer_ids: frozenset[int] = frozenset()
    min_duration_ms: int = -1
