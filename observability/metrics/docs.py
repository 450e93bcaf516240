"""docs/metrics.md, from the table of metrics. `python -m metaquorum.observability.metrics.docs` prints it."""

from __future__ import annotations

import re

from metaquorum.config.docs import list_item
from metaquorum.observability.metrics.catalogue import GROUPS, Metric
from metaquorum.platforms import end_without_reader

_HEAD = """# Metrics

With `metrics.listener=http://127.0.0.1:9404` in its configuration, a process serves metrics at
`http://127.0.0.1:9404/metrics`, in Prometheus's text format 0.0.4. Remote scrapers need
[a certificate](security.md) (`tls_config` of Prometheus) and, if the node has an
[authorizer](security.md#rights), Describe on the cluster.

A metric that Kafka has is named after its MBean:
`kafka.controller:type=KafkaController,name=ActiveControllerCount` is
`kafka_controller_KafkaController_ActiveControllerCount`; other keys of the MBean's name are labels. All
others begin with `metaquorum_`.

- A `# HELP` line of the scrape explains each metric. Metrics are gauges unless marked. Kafka's meters
  (`...PerSec`) are counters named `..._total`, its histograms and timers are histograms with buckets from
  0.1 to 30,000 ms.
- Unknown offsets, timestamps, epochs and node ids are -1, averages and maxima of nothing NaN. Rates,
  averages and maxima cover the last 30 to 60 s.
- Offsets of raft-metrics are those of the next record, as in Kafka; `LastAppliedRecordOffset` and
  `LastCommittedRecordOffset` are those of the last one.

What differs from Kafka:

- `TimedOutBrokerHeartbeatCount` and `EventQueueOperationsTimedOutCount` count requests that timed out at
  the caller; expired broker sessions are `metaquorum_controller_expired_sessions_total`.
- Committed metadata that cannot be replayed ends the process. In a running process, `MetadataErrorCount`
  and `metadata-load-error-count` count damaged fetched snapshots, and `metadata-apply-error-count` is 0.
- `commit-latency-*` are per batch; Kafka divides by the number of records.
- An error of a partition counts once per request and code in `ErrorsPerSec`.
"""

_SAID_ABOVE = re.compile(r",? [Oo]ver the last 30 to 60 s\.?| NaN: none\.| -1: (?:none|unknown)\.")
"""Text that the page states once for all metrics at the top; a scrape repeats it, since its reader has no
page."""


def _item(metric: Metric) -> str:
    labels = "".join(f"{{{label}}}" for label in metric.labels)
    name = f"`{metric.shown_name}`{' ' + labels if labels else ''}"
    meaning = _SAID_ABOVE.sub("", metric.text).rstrip(".") + "."
    words = re.findall(r"[a-z]+", meaning.lower())
    unit = "" if metric.unit in words or f"{metric.unit}s" in words else metric.unit
    notes = ", ".join(note for note in (metric.kind.replace("gauge", ""), unit) if note)
    return list_item(f"{name}{f' ({notes})' if notes else ''}: {meaning}")


def _is_explained(metric: Metric) -> bool:
    """True if the page explains a metric: of Kafka's, only those with labels or with values that have a
    meaning."""
    return not metric.name.startswith("kafka_") or bool(metric.labels) or metric.unit == "state"


def metrics_page() -> str:
    """The complete page."""
    parts = [_HEAD]
    for title, metrics in GROUPS:
        parts.append(f"\n## {title}\n\n")
        parts += [_item(metric) for metric in metrics if _is_explained(metric)]
        others = [f"`{metric.shown_name}`" for metric in metrics if not _is_explained(metric)]
        parts += [list_item(f"As in Kafka: {', '.join(others)}.")] if others else []
    parts.append(
        "\nAlso the usual metrics of a process (`process_...`) and of Python's garbage collector"
        " (`python_gc_...`).\n"
    )
    return "".join(parts)


if __name__ == "__main__":
    end_without_reader()
    print(metrics_page(), end="")
