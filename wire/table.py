"""Reads the table of requests and responses, one API at a time, at its first use.

An API is a block that begins with `NAME KEY versions A-B flexible C+` (or `flexible never`); its request and
its response follow, one line per field in wire order, the fields of a structure indented below it:

    NAME TYPE[?[SINCE+]] [VERSIONS] [tag N] [ignorable] [= DEFAULT]

`?` means nullable, from version SINCE if that is not the field's first. VERSIONS is `A+` or `A-B`, and may be
left out if it equals the parent's. TYPE is one of Kafka's, or the name of a structure; a structure without
fields of its own is the one of that name above it in the same message. Tags from 10000 on are fields specific
to metaquorum. Kafka's brokers ignore them in a request. A response has them only if a field in the request
asks for them: some clients do not ignore unknown tagged fields.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import msgspec

from metaquorum.wire.generator import Decoder, ValuesLeft, Writer, compile_decoder, compile_writer
from metaquorum.wire.schema import ZERO, Field, StructSchema
from metaquorum.wire.tables import access, cluster, data, groups, nodes, topics

_TABLES = (access, cluster, data, groups, nodes, topics)
_HEAD = re.compile(r"^(\w+) (\d+) versions (\d+)-(\d+) flexible (?:(\d+)\+|never)$", re.MULTILINE)
_LINE = re.compile(
    r"(?P<indent> *)(?P<name>\w+) (?P<array>\[\])?(?P<type>\w+)(?P<null>\?(?:(?P<null_since>\d+)\+)?)?"
    r"(?: (?P<since>\d+)(?:\+|-(?P<until>\d+)))?(?: tag (?P<tag>\d+))?(?P<ignorable> ignorable)?"
    r"(?: = (?P<default>\S+))?"
)
_WORD = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


class Api(msgspec.Struct, frozen=True, eq=False):
    """One API: its name and key in Kafka's protocol, and the versions that the table has, both included.

    `flexible_since` is the first version with compact lengths and tagged fields (KIP-482), None if no version
    has them.
    """

    name: str
    key: int
    min_version: int
    max_version: int
    flexible_since: int | None
    text: str

    @property
    def versions(self) -> range:
        return range(self.min_version, self.max_version + 1)

    def is_flexible(self, version: int) -> bool:
        return self.flexible_since is not None and version >= self.flexible_since


def read_apis() -> dict[int, Api]:
    """Every API of the table by its key, in ascending order."""
    apis = {}
    for table in _TABLES:
        heads = [*_HEAD.finditer(table.TABLE)]
        ends = [*(head.start() for head in heads[1:]), len(table.TABLE)]
        for head, end in zip(heads, ends, strict=True):
            name, key, low, high, flexible = head.groups()
            text = table.TABLE[head.end() : end].strip("\n")
            since = None if flexible is None else int(flexible)
            apis[int(key)] = Api(name, int(key), int(low), int(high), since, text)
    return dict(sorted(apis.items()))


def read_messages(api: Api) -> tuple[StructSchema, StructSchema]:
    """The schemas of the request and of the response."""
    request, _, response = api.text.partition("\nresponse")
    return (
        read_structure(f"{api.name}Request", request.removeprefix("request")),
        read_structure(f"{api.name}Response", response),
    )


def read_structure(name: str, text: str) -> StructSchema:
    """The schema of one message from its lines in the table, each indented by two blanks or more."""
    return _Message(name, text).schema


class _Message:
    """One message being read: its lines, and the structures named so far."""

    def __init__(self, name: str, text: str) -> None:
        self.structures: dict[str, StructSchema] = {}
        self._lines = [line for line in text.split("\n") if line]
        self._position = 0
        fields = tuple(self._fields(2))
        if self._position != len(self._lines):
            raise ValueError(f"{name}: cannot read {self._lines[self._position]!r}")
        inner = {schema.name: schema.cls for schema in self.structures.values()}
        self.schema = StructSchema(cls=make_class(name, fields, inner), fields=fields)

    def _fields(self, depth: int) -> Iterator[Field]:
        """The fields at this depth of indentation, up to the end of their structure."""
        while self._position < len(self._lines):
            line = _LINE.fullmatch(self._lines[self._position])
            if line is None or len(line["indent"]) != depth:
                return
            self._position += 1
            yield self._field(line, depth)

    def _field(self, line: re.Match[str], depth: int) -> Field:
        kind = line["type"]
        struct = None
        if kind not in ZERO:
            fields = tuple(self._fields(depth + 2))
            if fields:
                self.structures[kind] = StructSchema(cls=make_class(kind, fields, {}), fields=fields)
            struct = self.structures[kind]
        since = int(line["since"] or 0)
        return Field(
            name=python_name(line["name"]),
            kafka_name=line["name"],
            type=(line["array"] or "") + (kind if struct is None else "struct"),
            default=_default(line["default"], kind, line["array"] is not None, struct),
            since=since,
            until=None if line["until"] is None else int(line["until"]),
            nullable=line["null"] is not None,
            nullable_since=int(line["null_since"] or since),
            tag=None if line["tag"] is None else int(line["tag"]),
            ignorable=line["ignorable"] is not None,
            struct=struct,
        )


def python_name(name: str) -> str:
    """Converts a name in camel case to underscores."""
    return _WORD.sub("_", name).lower()


def _default(text: str | None, kind: str, array: bool, struct: StructSchema | None) -> Any:
    if text == "null":
        return None
    if array:
        return ()
    if struct is not None:
        return struct.cls()
    if text is None:
        return ZERO[kind]
    return text == "true" if kind == "bool" else text if kind == "string" else int(text)


def make_class(name: str, fields: tuple[Field, ...], inner: dict[str, type[Any]]) -> type[Any]:
    """A frozen class with the fields in the order of the table, and the classes of its structures."""
    return msgspec.defstruct(
        name,
        [*((field.name, Any, field.default) for field in fields), ("unknown_tags", Any, ())],
        frozen=True,
        gc=False,
        module="metaquorum.wire.messages",
        namespace=inner,
    )


# Every API of the table, with its request and response as classes, decoders and writers.
# When these are created: schemas and classes at an API's first use, code at a version's.

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
        self._decoders: dict[tuple[int, ValuesLeft | None], Decoder] = {}
        self._writers: dict[int, Writer] = {}

    @property
    def name(self) -> str:
        return self.schema.name

    @property
    def cls(self) -> type[Any]:
        return self.schema.cls

    def decoder(self, version: int, left: ValuesLeft | None = None) -> Decoder:
        """The decoder for a version that the API has; `left` counts what it reads (`compile_decoder`)."""
        decoder = self._decoders.get((version, left))
        if decoder is None:
            decoder = compile_decoder(self.schema, version, self.api.is_flexible(version), left)
            self._decoders[version, left] = decoder
        return decoder

    def writer(self, version: int) -> Writer:
        """The writer for a version that the API has."""
        writer = self._writers.get(version)
        if writer is None:
            writer = compile_writer(self.schema, version, self.api.is_flexible(version))
            self._writers[version] = writer
        return writer


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
