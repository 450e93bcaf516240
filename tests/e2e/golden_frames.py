"""The requests of a golden capture, sent again to our brokers, and Kafka's responses translated to their ids.

What two clusters cannot have in common: ids of topics, producers, sessions and members, and ports.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
import socket
import struct
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
from crc32c import crc32c

from metaquorum.wire import codec
from metaquorum.wire.codec import RequestHeader
from metaquorum.wire.table import APIS

BROKER = "broker-"
HOST = "127.0.0.1"
GOLDEN_PORT = 41010
"""Port of broker 0 in the captures; those of the others follow."""
TIMEOUT_S = 30.0
ORDER = "[order]"
"""Marks two arrays that have the same elements in another order."""

_KINDS = {
    "topic_id": "topic",
    "producer_id": "producer",
    "v3_and_below_producer_id": "producer",
    "session_id": "session",
    "member_id": "member",
    "leader": "member",
    "port": "port",
}
"""What is translated, by field."""
_TEACHES = {"InitProducerId": "producer_id", "Fetch": "session_id", "JoinGroup": "member_id"}
"""The field of a response that holds a new id, by API."""
_NO_ID = {-1, ""}

_BATCH = struct.Struct(">qi")
_MAGIC_AT, _CRC_AT, _SEALED_FROM, _PRODUCER_AT = 16, 17, 21, 43
_MAGIC = 2
_CRC, _PRODUCER = struct.Struct(">I"), struct.Struct(">q")


@dataclass(frozen=True)
class Frame:
    """One request to a broker, and Kafka's response; None: it closed the connection."""

    label: str
    node_id: int
    header: RequestHeader
    body: Any
    answer: Any

    @property
    def api(self) -> str:
        return APIS[self.header.api_key].name

    @property
    def version(self) -> int:
        return self.header.version


@dataclass(frozen=True)
class Difference:
    """`path`: the field, with array indexes. `beside`: the part of Kafka's response that has the field."""

    path: str
    theirs: Any
    ours: Any
    beside: Any


def scripted(path: Path, apis: Collection[str]) -> Iterator[Frame]:
    """The requests of a script, of these APIs, to brokers."""
    for row in rows(path):
        if row["to"].startswith(BROKER) and row["api"] in apis:
            yield _frame(row["label"], row["to"], row["request"], row["response"])


def recorded(path: Path, apis: Collection[str], clients: str) -> Iterator[Frame]:
    """The requests of these APIs from clients whose ids match, in the order of Kafka's responses, up to the
    first shutdown of a broker."""
    waiting: dict[tuple[int, int], dict[str, Any]] = {}
    for row in rows(path):
        if row["dir"] == "mark" and "SIGTERM" in row["text"]:
            return
        key = row.get("api_key")
        if key not in APIS or APIS[key].name not in apis or not row["link"].startswith(BROKER):
            continue
        place = row["conn"], row["correlation_id"]
        if row["dir"] == ">" and re.fullmatch(clients, str(row["client_id"])):
            waiting[place] = row
        elif row["dir"] == "<" and place in waiting:
            asked = waiting.pop(place)
            label = f"{asked['client_id']} after {asked['t_ms']} ms"
            yield _frame(label, asked["link"], asked["frame"], row["frame"])


def rows(path: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(path, "rt") as lines:
        for line in lines:
            yield json.loads(line)


def _frame(label: str, node: str, request: str, response: str | None) -> Frame:
    asked = codec.decode_request(base64.b64decode(request))
    answer = None
    if response is not None:
        key, version = asked.header.api_key, asked.header.version
        answer = codec.decode_response(key, version, base64.b64decode(response)).body
    return Frame(label, int(node.removeprefix(BROKER)), asked.header, asked.body, answer)


@dataclass
class Replay:
    """Connections to the brokers at `ports`. `ids`: ours for the golden ones, by kind."""

    ports: Mapping[int, int]
    ids: dict[str, dict[Any, Any]] = field(default_factory=dict)
    _open: dict[int, socket.socket] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.ids = {kind: {} for kind in _KINDS.values()}
        self.ids["port"].update({GOLDEN_PORT + node: port for node, port in self.ports.items()})

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for connection in self._open.values():
            connection.close()

    def ask(self, frame: Frame) -> Any:
        """Our response to the request, in our terms; None: the connection was closed."""
        answer = self.send(frame.node_id, frame.header, self.translated(frame.body))
        name = _TEACHES.get(frame.api)
        if name is not None and answer is not None and frame.answer is not None:
            theirs, ours = getattr(frame.answer, name), getattr(answer, name)
            if theirs not in _NO_ID and ours not in _NO_ID:
                self.ids[_KINDS[name]].setdefault(theirs, ours)
        return answer

    def send(self, node_id: int, header: RequestHeader, body: Any) -> Any:
        frame = b"".join(codec.encode_request(header, body))
        connection = self._open.get(node_id)
        if connection is None:
            connection = socket.create_connection((HOST, self.ports[node_id]), timeout=TIMEOUT_S)
            self._open[node_id] = connection
        connection.sendall(len(frame).to_bytes(4) + frame)
        if not (length := _read(connection, 4)):
            self._open.pop(node_id).close()
            return None
        answer = _read(connection, int.from_bytes(length))
        body = codec.decode_response(header.api_key, header.version, answer).body
        return mapped(body, plain_value)

    def translated(self, message: Any) -> Any:
        """A message of the captures with this cluster's ids."""
        return mapped(message, self._translated_value)

    def _translated_value(self, name: str, value: Any) -> Any:
        if name == "records" and value is not None:
            return self._records(bytes(value))
        return self.ids[_KINDS[name]].get(value, value) if name in _KINDS else plain_value(name, value)

    def _records(self, records: bytes) -> bytes:
        """Batches with our producer ids, with a valid CRC if they had one."""
        return b"".join(map(self._batch, split(records)))

    def _batch(self, batch: bytes) -> bytes:
        if len(batch) < _PRODUCER_AT + _PRODUCER.size or batch[_MAGIC_AT] != _MAGIC:
            return batch
        made = bytearray(batch)
        (producer,) = _PRODUCER.unpack_from(made, _PRODUCER_AT)
        was_sealed = _CRC.unpack_from(made, _CRC_AT) == (crc32c(batch[_SEALED_FROM:]),)
        _PRODUCER.pack_into(made, _PRODUCER_AT, self.ids["producer"].get(producer, producer))
        if was_sealed:
            _CRC.pack_into(made, _CRC_AT, crc32c(bytes(made[_SEALED_FROM:])))
        return bytes(made)


def mapped(value: Any, leaf: Callable[[str, Any], Any], name: str = "") -> Any:
    """A message whose values are replaced with what `leaf` returns for a field's name and value."""
    if isinstance(value, tuple):
        return tuple(mapped(each, leaf, name) for each in value)
    if isinstance(value, msgspec.Struct):
        parts = {each: mapped(getattr(value, each), leaf, each) for each in value.__struct_fields__}
        return type(value)(**parts)
    return leaf(name, value)


def plain_value(name: str, value: Any) -> Any:
    return bytes(value) if isinstance(value, memoryview) else value


def _read(connection: socket.socket, size: int) -> bytes:
    """Empty if the connection ends first."""
    found = bytearray()
    while len(found) < size:
        try:
            part = connection.recv(size - len(found))
        except ConnectionResetError:
            return b""
        if not part:
            return b""
        found += part
    return bytes(found)


def codes(message: Any, name: str = "") -> set[int]:
    """The error codes in a response."""
    if isinstance(message, msgspec.Struct):
        return set().union(*(codes(getattr(message, each), each) for each in message.__struct_fields__))
    if isinstance(message, tuple):
        return set().union(*(codes(each, name) for each in message))
    return {message} if name.endswith("error_code") else set()


def split(records: bytes) -> Iterator[bytes]:
    """Its batches; the last one may be incomplete."""
    at = 0
    while at < len(records):
        end = len(records)
        if at + _BATCH.size <= len(records):
            end = at + _BATCH.size + max(0, _BATCH.unpack_from(records, at)[1])
        yield records[at:end]
        at = end


def differences(theirs: Any, ours: Any, path: str = "", beside: Any = None) -> Iterator[Difference]:
    if isinstance(theirs, msgspec.Struct) and type(theirs) is type(ours):
        for name in theirs.__struct_fields__:
            yield from differences(getattr(theirs, name), getattr(ours, name), f"{path}.{name}", theirs)
    elif isinstance(theirs, tuple) and isinstance(ours, tuple) and len(theirs) == len(ours):
        if theirs != ours and sorted(map(repr, theirs)) == sorted(map(repr, ours)):
            yield Difference(path + ORDER, theirs, ours, beside)
            return
        for at, (one, other) in enumerate(zip(theirs, ours, strict=True)):
            yield from differences(one, other, f"{path}[{at}]", beside)
    elif theirs != ours:
        yield Difference(path, theirs, ours, beside)
