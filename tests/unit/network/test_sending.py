"""What peers do not read, on each loop: the writer pauses, everything leaves, and the connection closes."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import socket

import pytest
import uvloop

from metaquorum.network.sending import write_all
from tests.unit.sources import files, name_of, tree_of

MIB = 1024 * 1024
LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


class Writer(asyncio.Protocol):
    """Knows whether its transport asked it to pause."""

    def __init__(self) -> None:
        self.is_paused = False
        self.lost = asyncio.get_running_loop().create_future()

    def pause_writing(self) -> None:
        self.is_paused = True

    def resume_writing(self) -> None:
        self.is_paused = False

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set_result(exc)


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize(
    "chunks",
    [
        (b"head", bytes(4 * MIB)),
        (bytes(4 * MIB),),
        (b"head", bytearray(4 * MIB), memoryview(b"tail"), b""),
        (b"", bytes(4 * MIB), b"", b""),
    ],
    ids=["two", "one", "last is empty", "several are empty"],
)
def test_a_writer_pauses_until_its_peer_reads_and_its_connection_can_end(
    loop: str, chunks: tuple[bytes | bytearray | memoryview, ...]
) -> None:
    async def run() -> None:
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        transport, writer = await asyncio.get_running_loop().create_connection(Writer, sock=ours)
        write_all(transport, chunks)
        write_all(transport, (b"",))
        assert writer.is_paused
        transport.close()
        taken, wanted = bytearray(), b"".join(chunks)
        with contextlib.closing(theirs):
            async with asyncio.timeout(20):  # until everything was read, and the connection has ended
                while part := await asyncio.get_running_loop().sock_recv(theirs, MIB):
                    taken += part
                assert await writer.lost is None
        assert taken == wanted
        assert not writer.is_paused

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(run())


def test_nothing_else_calls_writelines_of_a_transport() -> None:
    callers = [
        name_of(path)
        for path in files()
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Attribute) and node.attr == "writelines" and ast.unparse(node.value) != "file"
    ]
    assert callers == ["network/sending.py"]
