"""Uuids as Kafka writes them: 16 bytes on the wire, 22 characters of URL-safe base64 in text.

Knows only the two forms; who draws a new uuid brings its own randomness.
"""

from __future__ import annotations

import base64
import binascii

ZERO_UUID = bytes(16)
"""The uuid that means: none."""

_TEXT_CHARACTERS = 22


def uuid_text(value: bytes) -> str:
    """The text form of a 16-byte uuid, without padding. Raises ValueError for any other length."""
    if len(value) != 16:
        raise ValueError(f"a uuid has 16 bytes, this value has {len(value)}")
    return base64.urlsafe_b64encode(value)[:_TEXT_CHARACTERS].decode("ascii")


def parse_uuid(text: str) -> bytes:
    """The 16 bytes of a uuid in text form. Raises ValueError, saying what the form is."""
    instruction = f"not a uuid: {text!r}; a uuid is 22 characters of A-Z a-z 0-9 - _"
    stripped = text.rstrip("=")
    if len(stripped) != _TEXT_CHARACTERS:
        raise ValueError(instruction)
    try:
        value = base64.b64decode(stripped + "==", altchars=b"-_", validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(instruction) from error
    if uuid_text(value) != stripped:
        raise ValueError(f"{instruction}, and the last one ends in A, Q, g or w")
    return value
