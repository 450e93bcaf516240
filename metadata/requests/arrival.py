"""A request as it reaches a controller node, and the node's answer to it.

Owns what is known about a request beside its content: the time, the caller, the quota it counts against. Does
not know who waits for the answer: `runtime.requests` does.
"""

from __future__ import annotations

import msgspec

from metaquorum.metadata.errors import ApiError
from metaquorum.metadata.records.batch_cause import BatchCause
from metaquorum.metadata.requests.common import ControllerRequest, ControllerResponse


class Mutator(msgspec.Struct, frozen=True, kw_only=True):
    """A client whose changes of partitions count against its quota (KIP-599). `strict`: it understands a
    refusal; others have to wait after their change."""

    user: str
    client_id: str
    strict: bool


class RequestArrived(msgspec.Struct, frozen=True, kw_only=True):
    """A request of a client or broker. `arrived_ms` was taken on arrival, before any queue. `mutator` None:
    no quota applies. `cause`: the caller (None: unknown)."""

    key: int
    arrived_ms: int
    request: ControllerRequest
    mutator: Mutator | None = None
    cause: BatchCause | None = None


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """Answer the client request `key`. Released only when what it reports is committed."""

    key: int
    response: ControllerResponse | ApiError
