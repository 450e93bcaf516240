"""Kafka's uuid text: 16 bytes as base64url without padding. A uuid is 16 `bytes` here.

Draws no random numbers itself (the caller passes the generator) and knows no files: `files.directory_ids`
gives an id to a directory without one. Source: Kafka's `org.apache.kafka.common.Uuid`, `DirectoryId`
(KIP-858).
"""

from __future__ import annotations

import base64
import binascii
import random

UUID_BYTES = 16
ZERO_UUID = bytes(16)
ONE_UUID = (1).to_bytes(16, "big")
# The metadata topic's id, and the reserved directory ids of KIP-858.
METADATA_TOPIC_UUID = ONE_UUID
UNASSIGNED_DIRECTORY = ONE_UUID
LOST_DIRECTORY = (2).to_bytes(16, "big")
METADATA_TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAQ"
# Directory ids below 100 are reserved for special meanings.
_RESERVED_BELOW = 100


def uuid_to_text(value: bytes) -> str:
    """22 characters. Raises ValueError for anything but 16 bytes."""
    if len(value) != UUID_BYTES:
        raise ValueError(f"a uuid has {UUID_BYTES} bytes, not {len(value)}")
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode("ascii")


def uuid_from_text(text: str) -> bytes:
    """16 bytes. Raises ValueError for any other text; its message describes a uuid's form."""
    try:
        value = base64.b64decode(text.encode("ascii") + b"==", altchars=b"-_", validate=True)
    except (UnicodeEncodeError, binascii.Error):
        value = b""
    if len(value) != UUID_BYTES or uuid_to_text(value) != text:
        raise ValueError(
            f"{text!r} is not a uuid: write 22 characters of base64url, as random-uuid prints them"
        )
    return value


def is_reserved_directory(value: bytes) -> bool:
    """True for ids that no real directory may have."""
    return value[:15] == bytes(15) and value[15] < _RESERVED_BELOW


def random_uuid(rng: random.Random) -> bytes:
    """A version 4 uuid that is not reserved and whose text does not begin with "-" (a command line would
    take it for an option)."""
    while True:
        value = bytearray(rng.randbytes(UUID_BYTES))
        value[6] = (value[6] & 0x0F) | 0x40
        value[8] = (value[8] & 0x3F) | 0x80
        if not is_reserved_directory(bytes(value)) and not uuid_to_text(bytes(value)).startswith("-"):
            return bytes(value)
