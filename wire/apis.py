"""Every API of the table, with its request and response as classes, decoders and writers.

Owns when these are created: schemas and classes at an API's first use, code at a version's. Does not know
frames; headers are in `wire.codec`.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from metaquorum.wire.generator import Decoder, Writer, compile_decoder, compile_writer
from metaquorum.wire.schema import StructSchema
from metaquorum.wire.table import Api, read_apis, read_messages

APIS: dict[int, Api] = read_apis()
"""Every API by its key."""

API_BY_NAME: dict[str, Api] = {api.name: api for api in APIS.values()}

API_VERSIONS = API_BY_NAME["ApiVersions"].key
"""The key of the only API whose response has the oldest header in every version."""


class MessageType:
    """One request or response: its schema, and its code for every version."""

    def __init__(self, api: Api, schema: StructSchema) -> None:
        self.api = api
        self.schema = schema
        self._decoders: dict[int, Decoder] = {}
        self._writers: dict[int, Writer] = {}

    @property
    def name(self) -> str:
        return self.schema.name

    @property
    def cls(self) -> type[Any]:
        return self.schema.cls

    def decoder(self, version: int) -> Decoder:
        """The decoder for a version that the API has."""
        found = self._decoders.get(version)
        if found is None:
            found = compile_decoder(self.schema, version, self.api.is_flexible(version))
            self._decoders[version] = found
        return found

    def writer(self, version: int) -> Writer:
        """The writer for a version that the API has."""
        found = self._writers.get(version)
        if found is None:
            found = compile_writer(self.schema, version, self.api.is_flexible(version))
            self._writers[version] = found
        return found


@cache
def request_type(api_key: int) -> MessageType:
    """The request of an API. Raises KeyError if the table does not have it."""
    return _types(api_key)[0]


@cache
def response_type(api_key: int) -> MessageType:
    """The response of an API. Raises KeyError if the table does not have it."""
    return _types(api_key)[1]


@cache
def _types(api_key: int) -> tuple[MessageType, MessageType]:
    api = APIS[api_key]
    request, response = read_messages(api)
    return MessageType(api, request), MessageType(api, response)
