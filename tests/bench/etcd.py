"""Three members of etcd where `etcd` is on PATH: what a small durable write costs in another Raft store.

The benchmark of commits measures it in the same run. Its members sync each write, as our controllers do.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from google.protobuf import empty_pb2
from google.protobuf.unknown_fields import UnknownFieldSet

from metaquorum.node.local_nodes import free_ports
from tests.bench.quorum import next_name

MEMBERS = 3
CHANNELS = 8
READY_S = 30
STOP_S = 10
PUT = "/etcdserverpb.KV/Put"
STATUS = "/etcdserverpb.Maintenance/Status"
HEADER_FIELD, LEADER_FIELD = 1, 4
"""Of etcd's StatusResponse; a response's header has the id of the member that answers as its field 2."""
MEMBER_FIELD = 2


def is_there() -> bool:
    return shutil.which("etcd") is not None


@contextmanager
def three_members() -> Iterator[list[str]]:
    """Addresses for clients. The members and their directories go at the end."""
    ports = free_ports(2 * MEMBERS)
    clients, peers = ports[:MEMBERS], ports[MEMBERS:]
    everyone = ",".join(f"m{number}=http://127.0.0.1:{port}" for number, port in enumerate(peers))
    with tempfile.TemporaryDirectory(prefix="etcd-") as directory:
        processes = []
        try:
            for number, (client, peer) in enumerate(zip(clients, peers, strict=True)):
                command = [
                    "etcd",
                    *("--name", f"m{number}", "--data-dir", str(Path(directory) / str(number))),
                    *("--listen-client-urls", f"http://127.0.0.1:{client}"),
                    *("--advertise-client-urls", f"http://127.0.0.1:{client}"),
                    *("--listen-peer-urls", f"http://127.0.0.1:{peer}"),
                    *("--initial-advertise-peer-urls", f"http://127.0.0.1:{peer}"),
                    *("--initial-cluster", everyone, "--log-level", "error"),
                ]
                processes.append(
                    subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                )
            yield [f"127.0.0.1:{port}" for port in clients]
        finally:
            for process in processes:
                process.terminate()
            for process in processes:
                try:
                    process.wait(STOP_S)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


async def leader_among(addresses: list[str]) -> str:
    """The address of the member that leads, once there is one. Raises TimeoutError after `READY_S`."""
    async with asyncio.timeout(READY_S):
        while True:
            for address in addresses:
                if await _leads(address):
                    return address
            await asyncio.sleep(0.1)


async def _leads(address: str) -> bool:
    async with grpc.aio.insecure_channel(address) as channel:
        try:
            answer = await channel.unary_unary(STATUS, None, None)(b"", timeout=2)
        except grpc.aio.AioRpcError:
            return False
    status = _fields(answer)
    leader = status.get(LEADER_FIELD, 0)
    return leader != 0 and leader == _fields(status[HEADER_FIELD]).get(MEMBER_FIELD)


def _fields(message: bytes) -> dict[int, Any]:
    """Values by field number, of a message whose classes are not at hand."""
    fields: Any = UnknownFieldSet(empty_pb2.Empty.FromString(message))
    return {field.field_number: field.data for field in fields}


@asynccontextmanager
async def etcd_writers(leader: str, count: int) -> AsyncIterator[list[Any]]:
    """Clients of the member that leads; each call puts a key and returns how long that took, in ms."""
    options = (("grpc.use_local_subchannel_pool", 1),)
    channels = [grpc.aio.insecure_channel(leader, options=options) for _ in range(min(count, CHANNELS))]
    calls = [channel.unary_unary(PUT, None, None) for channel in channels]

    def client(number: int) -> Any:
        async def put() -> float:
            request = _put(next_name().encode(), bytes(100))
            start = time.perf_counter()
            await calls[number % len(calls)](request, timeout=10)
            return (time.perf_counter() - start) * 1e3

        return put

    try:
        yield [client(number) for number in range(count)]
    finally:
        await asyncio.gather(*(channel.close(None) for channel in channels))


def _put(key: bytes, value: bytes) -> bytes:
    """A PutRequest: the key is field 1, the value field 2, both shorter than 128 bytes."""
    return b"\x0a" + bytes([len(key)]) + key + b"\x12" + bytes([len(value)]) + value
