"""The control batch that begins an epoch: KIP-595's LeaderChangeMessage, version 0, as Kafka 3.7 writes it.

Owns the one record that Raft writes by itself. It is what lets a new leader commit without a client.
"""

from __future__ import annotations

import struct

from metaquorum.storage.batches.encode import control_key, encode_batch

LEADER_CHANGE_TYPE = 2
"""The control type of a LeaderChangeMessage in a batch's key."""
_HEAD = struct.Struct(">hi")
_VOTER_ID = struct.Struct(">i")
_NO_TAGS = b"\x00"


def encode_leader_change(
    *,
    base_offset: int,
    epoch: int,
    timestamp_ms: int,
    leader_id: int,
    voter_ids: tuple[int, ...],
    granting_ids: tuple[int, ...],
) -> bytes:
    """One sealed batch of one record. `granting_ids` voted for the leader, itself included."""
    value = _HEAD.pack(0, leader_id) + _voters(voter_ids) + _voters(granting_ids) + _NO_TAGS
    return encode_batch(
        base_offset=base_offset,
        leader_epoch=epoch,
        timestamp_ms=timestamp_ms,
        values=[value],
        keys=[control_key(LEADER_CHANGE_TYPE)],
        is_control=True,
    )


def _voters(ids: tuple[int, ...]) -> bytes:
    """A compact array: its length plus one as an unsigned varint, then one structure per voter."""
    count, length = len(ids) + 1, bytearray()
    while count > 0x7F:
        length.append((count & 0x7F) | 0x80)
        count >>= 7
    length.append(count)
    return bytes(length) + b"".join(_VOTER_ID.pack(voter_id) + _NO_TAGS for voter_id in ids)
