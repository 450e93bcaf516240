"""Requests about broker ids (S0): allocating an id, and binding keys to ids.

Owns the values. They have no counterpart in Kafka's protocol, and know nothing of the entries in the log that
remember ids (`metadata.broker_ids`). A request that fails is answered with an `ApiError`.
"""

from __future__ import annotations

import msgspec

from metaquorum.metadata.broker_ids import IdSource


class AllocateBrokerIdRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Sent by a broker that finds its id neither in its configuration nor in any of its directories.

    `request_id` (16 bytes) is the same in every repetition of one start and never used by another.
    `binding_key` is None if the broker has no stable name. `reuse_missing`: it may take over the only id that
    partitions name and no broker has (S0.7, S0.12). `cluster_id` is None if it does not know its cluster yet.
    """

    request_id: bytes
    cluster_id: str | None = None
    binding_key: str | None = None
    reuse_missing: bool = False


class AllocateBrokerIdResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The id and where it came from, and the cluster's id. With `broker_id` None, the broker must repeat the
    request after `retry_after_ms` because of `waiting_for`."""

    cluster_id: str
    broker_id: int | None = None
    source: IdSource | None = None
    retry_after_ms: int = 0
    waiting_for: str = ""


class BindBrokerIdRequest(msgspec.Struct, frozen=True, kw_only=True):
    """From now on a broker that starts with this key and without an id is `broker_id` (S0.15). Other keys of
    the same id are no longer bound: an id has one home."""

    key: str
    broker_id: int


class UnbindBrokerIdRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Removes the binding of a key."""

    key: str


BrokerIdRequest = AllocateBrokerIdRequest | BindBrokerIdRequest | UnbindBrokerIdRequest
BROKER_ID_REQUESTS = (AllocateBrokerIdRequest, BindBrokerIdRequest, UnbindBrokerIdRequest)
