"""How long one request may hold the event loop: every array of every API with many items, at a cluster.

    python -m tests.long_turns [API ...] [--items N] [--calls]

Prints the longest turn of the loop while each request is answered, the longest first: its processor time, or
the calls of functions in it, which no load of the machine changes. A node serves nobody else in a turn.
"""

from __future__ import annotations

import argparse
import socket
import struct
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Self

from metaquorum.testing import Cluster
from metaquorum.testing.interception import OWN_CLIENT
from metaquorum.wire import codec
from metaquorum.wire.schema import StructSchema
from metaquorum.wire.table import API_BY_NAME, APIS, request_type
from tests.closed_pipe import end

ITEMS = 12_000
"""More than any bound that requests to the active controller have."""
ANSWER_S = 120.0
TOPIC = "orders"
"""A topic that exists, with one partition."""
SCALARS: dict[str, Any] = {"int8": 2, "int16": 1, "int32": 1, "int64": 1, "bool": False}
VALUES: dict[str, Any] = {
    "timeout_ms": 1_000,
    "acks": -1,
    "member_id": "",
    "replica_id": -1,
    "session_epoch": -1,
    "max_wait_ms": 0,
    "max_bytes": 1_000_000,
    "session_timeout_ms": 6_000,
    "rebalance_timeout_ms": 1_000,
    "protocol_type": "consumer",
    "response_partition_limit": 2_000,
    "generation_id_or_member_epoch": -1,
    "num_partitions": 1,
    "replication_factor": 1,
    "producer_id": -1,
    "producer_epoch": -1,
    "cursor": None,
    "election_type": 0,
    "validate_only": True,
}
"""Of fields that decide whether a request is looked at."""


class Arrays:
    """Requests of one API in one version: for each array in it, one in which that array is long."""

    def __init__(self, api_key: int, version: int) -> None:
        self.api_key, self.version = api_key, version
        self.kind = request_type(api_key)

    def paths(self) -> list[tuple[str, ...]]:
        """Where its arrays are."""
        return [*self._paths(self.kind.schema, ())]

    def _paths(self, schema: StructSchema, above: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        for field in (*schema.fields_at(self.version), *schema.tagged_at(self.version)):
            if field.is_array:
                yield (*above, field.name)
            if field.struct is not None:
                yield from self._paths(field.struct, (*above, field.name))

    def body(self, path: tuple[str, ...], items: int) -> Any:
        """One with so many items in this array, and at most one in each other."""
        return self._filled(self.kind.schema, path, items, 0)

    def _filled(self, schema: StructSchema, path: tuple[str, ...], items: int, number: int) -> Any:
        values: dict[str, Any] = {}
        for field in schema.fields_at(self.version):
            inside = path[1:] if path and path[0] == field.name else ()
            is_long = path == (field.name,)
            if field.is_array:
                count = items if is_long else 1
                if not is_long and path and path[0] != field.name:
                    count = 0 if field.struct is not None else 1
                values[field.name] = tuple(
                    [self._item(field, inside, items, at if is_long else number) for at in range(count)]
                )
            elif field.struct is not None:
                nested = self._filled(field.struct, inside, items, number)
                values[field.name] = None if field.nullable and not inside else nested
            elif field.name in VALUES:
                values[field.name] = VALUES[field.name]
            else:
                values[field.name] = self._scalar(field, number, bool(path))
        for field in schema.tagged_at(self.version):
            if path == (field.name,):
                values[field.name] = tuple([self._item(field, (), items, at) for at in range(items)])
        return schema.cls(**{name: value for name, value in values.items() if value is not _LEFT})

    def _item(self, field: Any, path: tuple[str, ...], items: int, number: int) -> Any:
        if field.struct is not None:
            return self._filled(field.struct, path, items, number)
        return self._scalar(field, number, False, element=True)

    def _scalar(self, field: Any, number: int, above: bool, *, element: bool = False) -> Any:
        kind = field.element_type
        if kind == "string":
            return TOPIC if above and "name" in field.name else f"n{number}"
        if kind == "uuid":
            return number.to_bytes(16, "big")
        if kind in ("int32", "int64") and (
            element or field.name in ("partition_index", "index", "partition")
        ):
            return number
        if kind == "int16" and element:
            return number % 30_000
        if kind == "int8" and element:
            return number % 100
        return SCALARS.get(kind, _LEFT)


_LEFT = object()


class Turn(NamedTuple):
    """The longest turn while a request with one long array was answered. `calls`: of Python's functions, 0 if
    they were not counted."""

    api: str
    version: int
    array: str
    seconds: float
    calls: int
    answer: Any


class WatchedLoop:
    """The loop of a cluster in this process."""

    def __init__(self, cluster: Cluster) -> None:
        thread = cluster._thread
        assert thread is not None
        self._loop: Any = thread.loop
        self._calls = self.calls = 0
        self.seconds = 0.0

    def _count(self, frame: Any, event: str, argument: Any) -> None:
        self._calls += 1

    @contextmanager
    def watching(self, *, counts: bool) -> Iterator[None]:
        """Its longest turn is in `seconds` and, with `counts`, in `calls`."""
        self.calls, self.seconds = 0, 0.0
        once = self._loop._run_once

        def turn() -> None:
            self._calls, begun_s = 0, time.thread_time()
            if counts:
                sys.settrace(self._count)
            try:
                once()
            finally:
                sys.settrace(None)
            self.seconds = max(self.seconds, time.thread_time() - begun_s)
            self.calls = max(self.calls, self._calls)

        self._loop._run_once = turn
        try:
            yield
        finally:
            del self._loop._run_once


class Caller:
    """One connection to a broker."""

    def __init__(self, servers: str) -> None:
        host, port = servers.split(",", maxsplit=1)[0].rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), ANSWER_S)

    def ask(self, api_key: int, version: int, body: Any) -> Any:
        """The answer; None if the connection was closed instead."""
        header = codec.RequestHeader(api_key, version, 1, OWN_CLIENT)
        data = b"".join(codec.encode_request(header, body))
        try:
            self._socket.sendall(struct.pack(">i", len(data)) + data)
            (size,) = struct.unpack(">i", self._exactly(4))
            return codec.decode_response(api_key, version, self._exactly(size)).body
        except (EOFError, ConnectionError):
            return None

    def named(self, name: str, **values: Any) -> Any:
        """The answer to a request in its newest version."""
        kind = request_type(API_BY_NAME[name].key)
        return self.ask(kind.api.key, OFFERED.get(name, kind.api.max_version), kind.cls(**values))

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            piece = self._socket.recv(min(size - len(data), 1 << 20))
            if not piece:
                raise EOFError
            data += piece
        return bytes(data)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._socket.close()


OFFERED = {"FindCoordinator": 4, "InitProducerId": 4, "ApiVersions": 3}
PROPERTIES = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.num.partitions": 1,
}
"""Rights are looked at for every item, and coordinators have little to do of their own."""


def turns(names: Collection[str] = (), items: int = ITEMS, *, counts: bool = True) -> Iterator[Turn]:
    """The longest turn for each array of these APIs of a broker, or all."""
    with Cluster(properties=PROPERTIES) as cluster:
        cluster.create_topic(TOPIC)
        watched = WatchedLoop(cluster)
        with Caller(cluster.bootstrap_servers) as caller:
            _make_coordinators(caller)
            known = caller.named("ApiVersions", client_software_name="a", client_software_version="1")
        for each in known.api_keys:
            name, seen = APIS[each.api_key].name, set()
            if names and name not in names:
                continue
            for version in (each.max_version, each.min_version):
                arrays = Arrays(each.api_key, version)
                for path in [path for path in arrays.paths() if path not in seen]:
                    seen.add(path)
                    body = arrays.body(path, items)
                    with Caller(cluster.bootstrap_servers) as caller:
                        caller.ask(each.api_key, version, arrays.body(path, 2))  # its code is made now
                    with Caller(cluster.bootstrap_servers) as caller, watched.watching(counts=counts):
                        answer = caller.ask(each.api_key, version, body)
                    yield Turn(name, version, ".".join(path), watched.seconds, watched.calls, answer)


def _make_coordinators(caller: Caller) -> None:
    """Those of groups and transactions, and a transactional producer whose id the requests have."""
    for kind in (0, 1):
        while (
            caller.named("FindCoordinator", key_type=kind, coordinator_keys=("n0",))
            .coordinators[0]
            .error_code
        ):
            time.sleep(0.05)
    while (
        made := caller.named("InitProducerId", transactional_id="n0", transaction_timeout_ms=60_000)
    ).error_code:
        time.sleep(0.05)
    for prefix in ("", "v3_and_below_"):
        VALUES[f"{prefix}producer_id"], VALUES[f"{prefix}producer_epoch"] = (
            made.producer_id,
            made.producer_epoch,
        )


def main() -> int:
    """Prints the turns, the longest first."""
    parser = argparse.ArgumentParser(prog="python -m tests.long_turns", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="API")
    parser.add_argument("--items", type=int, default=ITEMS)
    parser.add_argument("--calls", action="store_true", help="count calls, which makes turns take longer")
    options = parser.parse_args()
    found = [*turns(options.names, options.items, counts=options.calls)]
    for each in sorted(found, key=lambda turn: (turn.calls, turn.seconds), reverse=True):
        what = f"{each.api} {each.version} {each.array}"
        print(f"{each.seconds * 1000:8.0f} ms {each.calls:9,} calls  {what:60} {str(each.answer)[:100]}")
    return 0


if __name__ == "__main__":
    end(main)
