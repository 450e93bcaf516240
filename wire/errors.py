"""The errors of converting values to bytes and back."""

from __future__ import annotations

import struct


class Malformed(ValueError):
    """Why bytes do not parse, or why a value cannot be encoded."""


ENCODE_ERRORS = (struct.error, Malformed, UnicodeEncodeError, TypeError, AttributeError, OverflowError)
"""What generated code may raise for a value that does not fit."""


class TooManyValues(ValueError):
    """The arrays of a message have more values than its reader allows; nothing more was read of it."""


class DecodeError(ValueError):
    """The bytes are not the message that they claim to be. The text names the field and its position."""


class EncodeError(ValueError):
    """A value does not fit its field. The text names the field."""


class UnsupportedFieldError(EncodeError):
    """A field is set that the version cannot carry."""


class UnknownApiError(DecodeError):
    """A request of an API or version that the table does not have.

    `api_key`, `version` and `correlation_id` are from the request's header.
    """

    def __init__(self, text: str, *, api_key: int, version: int, correlation_id: int) -> None:
        super().__init__(text)
        self.api_key = api_key
        self.version = version
        self.correlation_id = correlation_id
