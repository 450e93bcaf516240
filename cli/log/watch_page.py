"""The counters of `log watch`, in Prometheus's format. Apart from the watch, which loads no metrics without
them.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterable

from metaquorum.cli.errors import Failure
from metaquorum.metadata.text.addresses import address_text
from metaquorum.observability.metrics.catalogue import Metric
from metaquorum.observability.metrics.endpoint import CONTENT_TYPE, MetricsEndpoint, family_text
from metaquorum.observability.metrics.families import Family, one

INCIDENTS = Metric(
    name="metaquorum_watch_incidents",
    kind="counter",
    unit="incidents",
    text="Incidents since this watch began, by severity and kind.",
    labels=("severity", "kind"),
)
LAST_OFFSET = Metric(
    name="metaquorum_watch_last_offset",
    kind="gauge",
    unit="offset",
    text="The last committed record of the metadata log that was seen; -1 before the first.",
)
REPORTED = Metric(
    name="metaquorum_watch_reported",
    kind="counter",
    unit="incidents",
    text="Incidents that the receiver took.",
)
GIVEN_UP = Metric(
    name="metaquorum_watch_given_up",
    kind="counter",
    unit="incidents",
    text="Incidents that were not reported, after the last attempt or because too many waited.",
)
WAITING = Metric(
    name="metaquorum_watch_waiting",
    kind="gauge",
    unit="incidents",
    text="Incidents that are not reported yet.",
)
REACHED = Metric(
    name="metaquorum_watch_cluster_reached",
    kind="gauge",
    unit="0 or 1",
    text="Whether the cluster answers.",
)
METRICS = (INCIDENTS, LAST_OFFSET, REPORTED, GIVEN_UP, WAITING, REACHED)


class WatchCounts:
    """What a watch counts. Written by the thread that reads the log."""

    def __init__(self) -> None:
        self._incidents: Counter[tuple[str, str]] = Counter()
        self.last_offset = -1

    def take(self, severity: str, kind: str) -> None:
        self._incidents[severity, kind] += 1

    def families(self, *, reported: int, given_up: int, waiting: int, is_reached: bool) -> Iterable[Family]:
        """All values now."""
        yield Family(INCIDENTS, [(labels, float(count)) for labels, count in sorted(self._incidents.items())])
        yield one(LAST_OFFSET, self.last_offset)
        yield one(REPORTED, reported)
        yield one(GIVEN_UP, given_up)
        yield one(WAITING, waiting)
        yield one(REACHED, float(is_reached))


class WatchPage:
    """Serves the counters on a thread of its own until it is closed. Raises Failure if the port is taken."""

    def __init__(self, host: str, port: int, families: Callable[[], Iterable[Family]]) -> None:
        self._families = families
        try:
            self._bound = socket.create_server((host, port))
        except OSError as error:
            # Python appends the address to its own text.
            reason = (str(error) if error.errno is None else os.strerror(error.errno)).lower()
            raise Failure(f"cannot listen on {address_text(host, port)}: {reason}") from error
        self._bound.setblocking(False)
        self.address = address_text(*self._bound.getsockname()[:2])
        self._loop = asyncio.new_event_loop()
        self._endpoint = MetricsEndpoint(self._render, CONTENT_TYPE)
        self._thread = threading.Thread(target=self._loop.run_forever, name="metrics", daemon=True)

    def start(self) -> None:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._endpoint.start(self._bound), self._loop).result()

    async def _render(self) -> bytes:
        return b"".join(map(family_text, self._families()))

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._endpoint.close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
