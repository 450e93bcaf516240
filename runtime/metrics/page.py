"""The metrics page in Prometheus' text format 0.0.4.

Owns the conversion of families to text, and that a page never blocks the loop for longer than one slice.
prometheus_client implements the format; only this module imports it. Does not know where values come from:
`Source` is the interface.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.gc_collector import GCCollector
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as PrometheusMetric
from prometheus_client.registry import Collector

from metaquorum.runtime.clock import Clock
from metaquorum.runtime.metrics import catalogue as names
from metaquorum.runtime.metrics.families import Family, Source, one
from metaquorum.runtime.metrics.statistics import Histogram

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
                text.append(generate_latest(_Batch((prometheus_family(family),))))
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
