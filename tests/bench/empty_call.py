"""A gRPC server that does nothing, in a process of its own: the cost of a call without any work.

The benchmark of commits measures it in the same run as the controllers, since both depend on the machine's
speed.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio
import uvloop

METHOD = "/metaquorum.bench.Empty/Call"


@dataclass(frozen=True, slots=True)
class EmptyServer:
    """A running server."""

    address: str
    pid: int


@contextmanager
def empty_server() -> Iterator[EmptyServer]:
    """Starts a server and stops it."""
    command = [sys.executable, "-m", "tests.bench.empty_call"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        if process.stdout is None or process.stdin is None:
            raise RuntimeError("the empty server has no pipes")
        try:
            yield EmptyServer(process.stdout.readline().strip(), process.pid)
        finally:
            process.stdin.close()


def empty_call(channel: grpc.aio.Channel) -> Any:
    """The method: bytes in, no bytes out."""
    return channel.unary_unary(METHOD, None, None)


async def serve() -> None:
    """Serves until standard input ends; its address is the first line of output."""

    async def call(request: bytes, context: Any) -> bytes:
        return b""

    _, service, method = METHOD.split("/")
    handlers = {method: grpc.unary_unary_rpc_method_handler(call)}
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"127.0.0.1:{port}", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await server.stop(None)


if __name__ == "__main__":
    uvloop.run(serve())
