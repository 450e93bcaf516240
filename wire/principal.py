"""The principal in an Envelope (KIP-590), as Kafka's DefaultKafkaPrincipalBuilder writes it: an int16 version
and the message DefaultPrincipalData.
"""

from __future__ import annotations

import struct
from functools import cache
from typing import Any, NamedTuple

from metaquorum.wire.generator import compile_decoder, compile_encoder
from metaquorum.wire.primitives import Buffer
from metaquorum.wire.schema import StructSchema
from metaquorum.wire.table import read_structure

_VERSION = struct.Struct(">h")
_NEWEST = 0
_PRINCIPAL = """
  Type string
  Name string
  TokenAuthenticated bool
"""


class ForwardedPrincipal(NamedTuple):
    """`principal` is type and name, as `User:alice`; `by_token`: it logged in with a delegation token."""

    principal: str
    by_token: bool


@cache
def _schema() -> StructSchema:
    return read_structure("DefaultPrincipalData", _PRINCIPAL)


@cache
def _decoder() -> Any:
    return compile_decoder(_schema(), _NEWEST, flexible=True)


@cache
def _encoder() -> Any:
    return compile_encoder(_schema(), _NEWEST, _VERSION.pack(_NEWEST))


def encode_principal(forwarded: ForwardedPrincipal) -> bytes:
    """The principal of a client whose request a broker puts into an Envelope."""
    kind, _, name = forwarded.principal.partition(":")
    value = _schema().cls(type=kind, name=name, token_authenticated=forwarded.by_token)
    data: bytes = _encoder()(value)
    return data


def decode_principal(data: Buffer | None) -> ForwardedPrincipal | None:
    """The principal; None if the bytes are not one, or of a version that this release does not know."""
    try:
        (version,) = _VERSION.unpack_from(data or b"")
        if version != _NEWEST or data is None:
            return None
        value, end = _decoder()(data, _VERSION.size, len(data))
    except (struct.error, IndexError, ValueError):
        return None
    if end > len(data) or not value.type:
        return None
    return ForwardedPrincipal(f"{value.type}:{value.name}", value.token_authenticated)
