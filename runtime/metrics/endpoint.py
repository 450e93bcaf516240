"""The HTTP endpoint of a process's metrics: GET /metrics, and nothing else.

Owns the socket, the connections and their limits; h11 implements HTTP. Knows nothing of what it serves:
`page` renders it.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable
from functools import partial

import h11

from metaquorum.metadata.text.addresses import address_text
from metaquorum.runtime.metrics.rights import Scraper

CONNECTIONS_MAX = 16
"""The most open connections; another is closed at once. A scraper needs one."""

HEADER_BYTES_MAX = 16 * 1024
READ_BYTES = 16 * 1024
HANDSHAKE_S = 10.0
IDLE_S = 60.0
"""A connection is closed after this time without sending or receiving."""

INDEX = b"metaquorum: the figures are at /metrics\n"

_log = logging.getLogger(__name__)


class MetricsEndpoint:
    """Serves `render` at /metrics on a bound socket until it is closed."""

    def __init__(
        self,
        render: Callable[[], Awaitable[bytes]],
        content_type: str,
        refusal: Callable[[Scraper, str], str | None] | None = None,
    ) -> None:
        """`refusal` returns why a caller may not read the metrics, or None; without it, every caller may."""
        self._render = render
        self._content_type = content_type
        self._refusal = refusal
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self, bound: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        """Serves on a bound socket. `tls`: serves https; the context determines which clients may connect."""
        handshake_s = None if tls is None else HANDSHAKE_S
        self._server = await asyncio.start_server(
            self._accept, sock=bound, limit=HEADER_BYTES_MAX, ssl=tls, ssl_handshake_timeout=handshake_s
        )
        host, port = bound.getsockname()[:2]
        scheme = "http" if tls is None else "https"
        _log.info("metrics at %s://%s/metrics", scheme, address_text(host, port))

    async def close(self) -> None:
        """Stops serving and closes every connection."""
        if self._server is not None:
            self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None or len(self._connections) >= CONNECTIONS_MAX:
            writer.close()
            return
        self._connections.add(task)
        try:
            async with asyncio.timeout(None) as limit:
                await _Connection(reader, writer, limit, partial(self._answer, _caller(writer))).serve()
        except (TimeoutError, OSError):
            pass  # idle for too long, or the caller disconnected
        finally:
            self._connections.discard(task)
            writer.close()

    async def _answer(self, caller: Scraper, method: bytes, target: bytes) -> tuple[int, bytes, str]:
        """Returns status, body and content type."""
        path = target.split(b"?", 1)[0]
        if method not in (b"GET", b"HEAD"):
            return 405, b"only GET and HEAD are answered here\n", "text/plain; charset=utf-8"
        if path == b"/metrics":
            refused = None if self._refusal is None else self._refusal(caller, "GET /metrics")
            if refused is not None:
                return 403, f"{refused}\n".encode(), "text/plain; charset=utf-8"
            return 200, await self._render(), self._content_type
        if path == b"/":
            return 200, INDEX, "text/plain; charset=utf-8"
        return 404, b"nothing is here: the figures are at /metrics\n", "text/plain; charset=utf-8"


def _caller(writer: asyncio.StreamWriter) -> Scraper:
    tls = writer.get_extra_info("ssl_object")
    certificate = None if tls is None else tls.getpeercert(binary_form=True)
    return certificate, str((writer.get_extra_info("peername") or ("",))[0])


class _Connection:
    """One HTTP/1.1 connection, with one request at a time."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        limit: asyncio.Timeout,
        answer: Callable[[bytes, bytes], Awaitable[tuple[int, bytes, str]]],
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._limit = limit
        self._answer = answer
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEADER_BYTES_MAX)

    async def serve(self) -> None:
        """Serves until the caller closes the connection or sends a malformed request."""
        try:
            while (request := await self._request()) is not None:
                status, body, content_type = await self._answer(request.method, request.target)
                await self._send(status, body, content_type, head=request.method == b"HEAD")
                if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
                    return
                self._http.start_next_cycle()
        except h11.RemoteProtocolError as error:
            if self._http.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
                text = f"{error}\n".encode()
                await self._send(error.error_status_hint, text, "text/plain; charset=utf-8", head=False)

    async def _request(self) -> h11.Request | None:
        """The next request, without its body, which is read and dropped; None if the caller has closed the
        connection."""
        request: h11.Request | None = None
        while True:
            event = self._http.next_event()
            if event is h11.NEED_DATA:
                self._touch()
                self._http.receive_data(await self._reader.read(READ_BYTES))
            elif isinstance(event, h11.Request):
                request = event
            elif isinstance(event, h11.EndOfMessage):
                return request
            elif event is h11.PAUSED or isinstance(event, h11.ConnectionClosed):
                return None

    async def _send(self, status: int, body: bytes, content_type: str, *, head: bool) -> None:
        headers = [("content-type", content_type), ("content-length", str(len(body)))]
        if status == 405:
            headers.append(("allow", "GET, HEAD"))
        parts = [self._http.send(h11.Response(status_code=status, headers=headers))]
        if not head:
            parts.append(self._http.send(h11.Data(data=body)))
        parts.append(self._http.send(h11.EndOfMessage()))
        self._touch()
        self._writer.write(b"".join(part for part in parts if part))
        await self._writer.drain()

    def _touch(self) -> None:
        self._limit.reschedule(asyncio.get_running_loop().time() + IDLE_S)
