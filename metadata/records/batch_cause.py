"""What caused a batch of the metadata log, as its first record: a NoOpRecord with one tagged field.

Kafka reads NoOpRecords and ignores tagged fields that it does not know.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Annotated

import msgspec
from msgspec.structs import replace

from metaquorum.metadata.records.fields import Int32, String, UnknownTags, Wire, structure
from metaquorum.metadata.records.types import NoOpRecord
from metaquorum.wire.errors import Malformed
from metaquorum.wire.generator import compile_decoder, compile_encoder

CAUSE_TAG = 0x4D51
"""The tag of the field: far from those that Kafka assigns in sequence."""

TEXT_MAX_BYTES = 255
"""Maximum length of a name in bytes; a longer one is cut and ends in `...`."""

ENCODED_MAX_BYTES = 2_048
"""More than any writer of ours produces; a larger field is ignored."""

_KEPT_RECORDS = 256
"""The same few clients send the same requests again and again."""

_VERSION = 0
_CUT = "..."


class BatchCause(msgspec.Struct, frozen=True, gc=False):
    """`request`: Kafka's name of the API, if a request caused the batch. `rule`: why the controller acted, if
    the request does not show it. `principal`, `client_id` and `address` are the client's. `broker_id`: the
    broker that forwarded the request."""

    request: Annotated[String | None, Wire(tag=0)] = None
    rule: Annotated[String | None, Wire(tag=1)] = None
    principal: Annotated[String | None, Wire(tag=2)] = None
    client_id: Annotated[String | None, Wire(tag=3)] = None
    address: Annotated[String | None, Wire(tag=4)] = None
    broker_id: Annotated[Int32 | None, Wire(tag=5, none_on_wire=-1)] = None
    unknown_tags: UnknownTags = ()


_TEXTS = ("request", "rule", "principal", "client_id", "address")
_SCHEMA = structure(BatchCause)
_encode = compile_encoder(_SCHEMA, _VERSION, bytes((_VERSION,)))
_decode = compile_decoder(_SCHEMA, _VERSION)


def bounded(cause: BatchCause) -> BatchCause:
    """The same with every text within its bounds: clients choose some of them."""
    cut = {
        name: _shortened(text)
        for name in _TEXTS
        if (text := getattr(cause, name)) is not None and not (text.isascii() and len(text) <= TEXT_MAX_BYTES)
    }
    return replace(cause, **cut) if cut else cause


def _shortened(text: str) -> str:
    encoded = text.encode("utf-8", "replace")
    if len(encoded) <= TEXT_MAX_BYTES:
        return encoded.decode()
    return encoded[: TEXT_MAX_BYTES - len(_CUT)].decode("utf-8", "ignore") + _CUT


@lru_cache(maxsize=_KEPT_RECORDS)
def cause_record(cause: BatchCause) -> NoOpRecord:
    """The first record of a batch that `cause` caused."""
    return NoOpRecord(unknown_tags=((CAUSE_TAG, _encode(bounded(cause))),))


def cause_in(record: object) -> BatchCause | None:
    """The cause in a record; None for any other record, and for bytes that are not a cause."""
    if type(record) is not NoOpRecord or not record.unknown_tags:
        return None
    for tag, data in record.unknown_tags:
        if tag == CAUSE_TAG and data[:1] == bytes((_VERSION,)) and len(data) <= ENCODED_MAX_BYTES:
            try:
                cause, end = _decode(data, 1, len(data))
            except (IndexError, struct.error, Malformed, UnicodeDecodeError):
                return None
            return cause if end == len(data) else None
    return None
