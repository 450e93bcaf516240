"""Families as text, and that a long page is made in slices."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from metaquorum.clock import SystemClock
from metaquorum.observability.metrics import endpoint as page_module
from metaquorum.observability.metrics.catalogue import GROUPS, METRICS, Metric, prometheus_name
from metaquorum.observability.metrics.docs import metrics_page
from metaquorum.observability.metrics.endpoint import Page, prometheus_family
from metaquorum.observability.metrics.families import Family, one
from metaquorum.observability.metrics.statistics import Histogram

GAUGE = Metric(name="g", kind="gauge", unit="things", text="Some.", labels=("a", "b"))
COUNTER = Metric(name="c", kind="counter", unit="things", text="More.")
HISTOGRAM = Metric(name="h", kind="histogram", unit="ms", text="Times.")


class Source:
    def __init__(self, families: list[Family]) -> None:
        self._families = families
        self.prepared = 0

    async def prepare(self) -> None:
        self.prepared += 1

    def families(self, now_ms: int, wall_ms: int) -> Iterable[Family]:
        assert self.prepared
        return self._families


async def test_values_come_back_from_the_text() -> None:
    times = Histogram((1.0, 2.5))
    for value in (0.5, 2.0, 9.0):
        times.observe(value)
    odd = Family(GAUGE, [(('quo"te\\', "line\nend"), 1.5), (("x", "y"), float("nan"))])
    text = (
        await Page([Source([odd, one(COUNTER, 7), one(HISTOGRAM, times)])], SystemClock()).render()
    ).decode()
    found = {family.name: family for family in text_string_to_metric_families(text)}
    assert found["g"].documentation == "Some. Unit: things."
    assert found["g"].samples[0].labels == {"a": 'quo"te\\', "b": "line\nend"}
    assert found["g"].samples[0].value == 1.5
    assert found["g"].samples[1].value != found["g"].samples[1].value
    assert [(each.name, each.value) for each in found["c"].samples] == [("c_total", 7.0)]
    assert [(each.name, each.labels.get("le"), each.value) for each in found["h"].samples] == [
        ("h_bucket", "1", 1.0),
        ("h_bucket", "2.5", 2.0),
        ("h_bucket", "+Inf", 3.0),
        ("h_count", None, 3.0),
        ("h_sum", None, 11.5),
    ]
    assert found["process_resident_memory_bytes"].samples[0].value > 1e6
    assert found["process_open_fds"].samples[0].value > 2
    assert found["process_cpu_seconds"].samples[0].value > 0


def test_a_value_of_another_kind_than_its_metric_is_an_error() -> None:
    with pytest.raises(ValueError, match="h is a histogram"):
        prometheus_family(one(HISTOGRAM, 1.0))
    with pytest.raises(ValueError, match="c is a counter"):
        prometheus_family(one(COUNTER, Histogram()))


async def test_the_loop_gets_turns_while_a_page_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_module, "SLICE_MS", 0.0)
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    source = Source([one(Metric(name=f"m{at}", kind="gauge", unit="1", text="x"), at) for at in range(40)])
    page = Page([source], SystemClock())
    await page.render()
    task.cancel()
    assert turns >= 40
    assert 0 < page.longest_ms < page.took_ms


async def test_two_callers_get_a_page_each_one_after_the_other() -> None:
    source = Source([one(COUNTER, 7)])
    page = Page([source], SystemClock())
    first, second = await asyncio.gather(page.render(), page.render())
    assert source.prepared == 2
    assert b"c_total 7.0\n" in first and b"c_total 7.0\n" in second


def test_the_rule_for_names() -> None:
    assert (
        prometheus_name("kafka.controller", "KafkaController", "ActiveControllerCount")
        == "kafka_controller_KafkaController_ActiveControllerCount"
    )
    assert (
        prometheus_name("kafka.server", "raft-metrics", "poll-idle-ratio-avg")
        == "kafka_server_raft_metrics_poll_idle_ratio_avg"
    )


def test_the_table_names_every_figure_once_and_says_what_it_is() -> None:
    listed = [metric for _, group in GROUPS for metric in group]
    assert len(listed) == len(METRICS)
    for metric in listed:
        assert metric.text.endswith(".") and metric.unit
        assert metric.name.startswith(("kafka_", "metaquorum_"))
        assert not metric.name.endswith("_total")


def test_the_documented_table_is_that_of_the_program() -> None:
    path = Path(__file__).resolve().parents[3] / "docs" / "metrics.md"
    assert path.read_text() == metrics_page(), (
        "run: python -m metaquorum.observability.metrics.docs > docs/metrics.md"
    )


def test_alerts_ask_for_metrics_that_exist() -> None:
    rules = (Path(__file__).resolve().parents[3] / "examples" / "prometheus_alerts.yml").read_text("utf-8")
    asked = set(re.findall(r"\b((?:kafka|metaquorum)_\w+)", rules))
    assert len(asked) >= 12
    assert {name.removesuffix("_bucket") for name in asked} <= {
        metric.shown_name for metric in METRICS.values()
    }
