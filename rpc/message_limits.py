"""How large one message to a gRPC server may be, by method."""

from __future__ import annotations

_MIB = 1024 * 1024

MAX_MESSAGE_BYTES = 64 * _MIB
"""A request of a client in Kafka's protocol that a broker forwards; responses, too, have this limit."""
LISTS_MAX_BYTES = 8 * _MIB
"""Requests about many partitions."""
USUAL_MAX_BYTES = 1 * _MIB

LIMITS: dict[str, int] = {
    "Forwarding/Forward": MAX_MESSAGE_BYTES,
    "Partitions/AlterPartition": LISTS_MAX_BYTES,
    "Partitions/AssignReplicasToDirs": LISTS_MAX_BYTES,
}
"""By service and method; USUAL_MAX_BYTES for all others."""


def message_max_bytes(method: str) -> int:
    """The most bytes of one request of `method` (/metaquorum.v1.SERVICE/METHOD)."""
    return LIMITS.get(method.rpartition(".")[2], USUAL_MAX_BYTES)
