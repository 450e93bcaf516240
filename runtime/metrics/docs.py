"""docs/metrics.md, made from the table of figures. `python -m metaquorum.runtime.metrics.docs` prints it."""

from __future__ import annotations

from metaquorum.runtime.metrics.catalogue import GROUPS, Metric

_HEAD = """# Metrics

A process whose configuration has `metrics.listener=http://127.0.0.1:9404` shows its figures at
`http://127.0.0.1:9404/metrics`, in the text format 0.0.4 of Prometheus; without that key it neither listens
nor counts. The address has no protection of its own: keep it on the loopback interface or in a network that
only the scraper reaches. `metaquorum local status` names the addresses of a local cluster.

## Names

A figure that Kafka has is called as in Kafka: domain, type and name of its MBean (or the attribute, where
Kafka's MBean has many) as Kafka writes them, joined with `_`, and every run of characters that Prometheus
does not allow is one `_`. So `kafka.controller:type=KafkaController,name=ActiveControllerCount` is
`kafka_controller_KafkaController_ActiveControllerCount`, and the attribute `poll-idle-ratio-avg` of
`kafka.server:type=raft-metrics` is `kafka_server_raft_metrics_poll_idle_ratio_avg`. Other keys of an
MBean's name are labels. The JMX exporter's example configurations write the same in lower case.

- What Kafka registers as a gauge is a gauge, also where it only rises (`MetadataErrorCount`).
- A meter of Kafka (`...PerSec`) is a counter, with `_total` behind its name: `rate()` is the reader's.
- A histogram or timer of Kafka is a histogram with buckets in ms, from 0.1 to 30,000.
- Figures that Kafka does not have begin with `metaquorum_`.
- Unknown offsets, epochs and node ids are -1, averages of nothing NaN.

Offsets of raft-metrics are those of the next record, as in Kafka; `LastAppliedRecordOffset` and
`LastCommittedRecordOffset` are those of the last one.

## What differs from Kafka

- `TimedOutBrokerHeartbeatCount` and `EventQueueOperationsTimedOutCount` count requests whose caller stopped
  to wait; brokers whose session ran out are `metaquorum_controller_expired_sessions_total`.
- Committed metadata that cannot be replayed ends the process (with the reason in its last line) instead of
  being counted while it runs on: in a running process `MetadataErrorCount` and `metadata-load-error-count`
  count snapshots that were damaged when they were fetched, and `metadata-apply-error-count` is 0.
- `commit-latency-*` are of batches; Kafka divides by the number of their records.
- Counts over all partitions are of the committed image. An error of one partition in an answer counts once
  a request and code in `ErrorsPerSec`.

## What a scrape costs

Partitions are counted by chunks of 512, and a chunk that did not change is not looked at again. Counting
and formatting give way to the loop every millisecond. With 1,000,000 partitions on one core of the machine
of [benchmarks.md](benchmarks.md) (`python -m tests.bench scrape`): a page takes 1.7 ms when nothing
changed, and 20 ms in slices when every chunk has; the loop waits for 2 to 4 ms at worst.
"""


def _row(metric: Metric) -> str:
    labels = "".join(f"{{{label}}}" for label in metric.labels)
    roles = "both" if len(metric.roles) > 1 else metric.roles[0]
    mbean = f"`{metric.mbean}`" if metric.mbean else ""
    return (
        f"| `{metric.shown_name}`{' ' + labels if labels else ''} | {metric.kind} | {metric.unit} | {roles} "
        f"| {metric.text} | {mbean} |\n"
    )


def metrics_page() -> str:
    """The whole page."""
    parts = [_HEAD]
    for title, metrics in GROUPS:
        parts.append(f"\n## {title}\n\n")
        parts.append(
            "| name {labels} | type | unit | of | meaning | Kafka's MBean |\n|---|---|---|---|---|---|\n"
        )
        parts += [_row(metric) for metric in metrics]
    parts.append(
        "\nBeside these, the process's own figures by their usual names: `process_resident_memory_bytes`,\n"
        "`process_virtual_memory_bytes`, `process_cpu_seconds_total`, `process_open_fds`,\n"
        "`process_max_fds`, `process_start_time_seconds`, and those of Python's garbage\n"
        "collector (`python_gc_...`).\n"
    )
    return "".join(parts)


if __name__ == "__main__":
    print(metrics_page(), end="")
