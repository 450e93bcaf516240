"""The HTTP endpoint of a process's metrics: GET /metrics, in Prometheus's text format 0.0.4.

A page never blocks the loop for longer than one slice. Only this module imports h11 and prometheus_client,
and only a process with a `metrics.listener` imports this module.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from itertools import accumulate

import h11
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.gc_collector import GCCollector
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as PrometheusMetric
from prometheus_client.registry import Collector

from metaquorum.clock import Clock
from metaquorum.metadata.text.addresses import address_text, plain_host
from metaquorum.network.acceptor import Acceptor
from metaquorum.network.limits import ConnectionLimits, ConnectionSlot
from metaquorum.network.refused_callers import RefusedCallers
from metaquorum.observability.metrics import catalogue as names
from metaquorum.observability.metrics.families import Family, Source, one
from metaquorum.observability.metrics.rights import Scraper
from metaquorum.observability.metrics.statistics import Histogram

CONNECTIONS_MAX = 16
"""The most open connections; another closes the oldest without a request, or is closed at once. A scraper
needs one."""

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
        limits: ConnectionLimits | None = None,
    ) -> None:
        """`limits`: of the connections; None: CONNECTIONS_MAX. `refusal`
        returns why a caller may not read the metrics, or None; without it, every caller may."""
        self._render = render
        self._content_type = content_type
        self._refusal = refusal
        self._limits = limits or ConnectionLimits(files_max=CONNECTIONS_MAX)
        self._acceptor: Acceptor | None = None
        self._bound: socket.socket | None = None
        self._tls: ssl.SSLContext | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self, bound: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        """Serves on a bound socket. `tls`: serves https; the context determines which clients may connect."""
        self._bound, self._tls = bound, tls
        self._acceptor = Acceptor(
            bound, self._serve, name="metrics.listener", limits=self._limits, refused=RefusedCallers()
        )
        self._acceptor.open()
        host, port = bound.getsockname()[:2]
        scheme = "http" if tls is None else "https"
        _log.info("metrics at %s://%s/metrics", scheme, address_text(host, port))

    async def close(self) -> None:
        """Stops serving and closes every connection."""
        if self._acceptor is not None:
            self._acceptor.close()
        if self._bound is not None:
            self._bound.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _serve(self, client: socket.socket, peer: str, slot: ConnectionSlot) -> None:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=HEADER_BYTES_MAX)
        protocol = asyncio.StreamReaderProtocol(reader)
        try:
            transport, _ = await loop.connect_accepted_socket(
                lambda: protocol,
                client,
                ssl=self._tls,
                ssl_handshake_timeout=None if self._tls is None else HANDSHAKE_S,
            )
        except (OSError, asyncio.CancelledError):
            client.close()
            slot.leave()
            return
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        if task is not None:
            self._connections.add(task)
        try:
            async with asyncio.timeout(None) as limit:
                answer = partial(self._answer, _caller(writer))
                await _Connection(reader, writer, limit, answer, slot).serve()
        except (TimeoutError, OSError):
            pass  # idle for too long, or the caller disconnected
        finally:
            if task is not None:
                self._connections.discard(task)
            slot.leave()
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
    return certificate, plain_host((writer.get_extra_info("peername") or ("",))[0])


class _Connection:
    """One HTTP/1.1 connection, with one request at a time."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        limit: asyncio.Timeout,
        answer: Callable[[bytes, bytes], Awaitable[tuple[int, bytes, str]]],
        slot: ConnectionSlot,
    ) -> None:
        self._slot = slot
        self._reader = reader
        self._writer = writer
        self._limit = limit
        self._answer = answer
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEADER_BYTES_MAX)

    async def serve(self) -> None:
        """Serves until the caller closes the connection or sends a malformed request."""
        try:
            while (request := await self._request()) is not None:
                self._slot.known()
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


CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4

SLICE_MS = 1.0
"""How long to format before the loop gets a turn. A family is never split."""


class _Batch(Collector):
    def __init__(self, families: Iterable[PrometheusMetric]) -> None:
        self._families = families

    def collect(self) -> Iterable[PrometheusMetric]:
        return self._families


class Page:
    """Renders the page, for one scrape at a time."""

    def __init__(self, sources: Sequence[Source], clock: Clock) -> None:
        self._sources = tuple(sources)
        self._clock = clock
        self._one_at_a_time = asyncio.Lock()
        self._process = (ProcessCollector(registry=None), GCCollector(registry=CollectorRegistry()))
        self.took_ms = 0.0
        """The duration of all slices of the last page together."""
        self.longest_ms = 0.0
        """The duration of the longest slice of the last page."""

    async def render(self) -> bytes:
        """The complete page. All values of one source are of one moment."""
        async with self._one_at_a_time:
            self._slices: list[float] = []
            for source in self._sources:
                await source.prepare()
            begun = time.perf_counter()
            families = [
                family
                for source in self._sources
                for family in source.families(self._clock.monotonic_ms(), self._clock.wall_ms())
            ]
            families.append(one(names.SCRAPE_TIME, self.took_ms))
            text: list[bytes] = []
            for family in families:
                text.append(family_text(family))
                begun = await self._pause(begun)
            for collector in self._process:
                text.append(generate_latest(_Batch(collector.collect())))
                begun = await self._pause(begun)
            self._slices.append((time.perf_counter() - begun) * 1000)
            self.took_ms, self.longest_ms = sum(self._slices), max(self._slices)
            return b"".join(text)

    async def _pause(self, begun: float) -> float:
        took_ms = (time.perf_counter() - begun) * 1000
        if took_ms < SLICE_MS:
            return begun
        self._slices.append(took_ms)
        await asyncio.sleep(0)
        return time.perf_counter()


def family_text(family: Family) -> bytes:
    """One family in the format. Raises ValueError as `prometheus_family` does."""
    return generate_latest(_Batch((prometheus_family(family),)))


def prometheus_family(family: Family) -> PrometheusMetric:
    """Converts a family to prometheus_client's class. Raises ValueError for a value of another kind than the
    metric."""
    metric = family.metric
    help_text = f"{metric.text} Unit: {metric.unit}."
    if metric.kind == "histogram":
        histogram = HistogramMetricFamily(metric.name, help_text, labels=metric.labels)
        for labels, value in family.samples:
            if not isinstance(value, Histogram):
                raise ValueError(f"{metric.name} is a histogram: give it one")
            histogram.add_metric(labels, _buckets(value), value.total)
        return histogram
    kinds = {"gauge": GaugeMetricFamily, "counter": CounterMetricFamily}
    plain: GaugeMetricFamily | CounterMetricFamily = kinds[metric.kind](
        metric.name, help_text, labels=metric.labels
    )
    for labels, value in family.samples:
        if isinstance(value, Histogram):
            raise ValueError(f"{metric.name} is a {metric.kind}: give it a number")
        plain.add_metric(labels, value)
    return plain


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    """(upper bound, number of values up to it) for each bucket, as the format requires."""
    ends = [f"{bound:g}" for bound in histogram.bounds] + ["+Inf"]
    return list(zip(ends, map(float, accumulate(histogram.counts)), strict=True))
