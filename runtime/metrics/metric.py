"""One metric, and the rule by which Kafka's names become Prometheus names.

Owns that rule. Does not know any metric: `catalogue` has the table.
"""

from __future__ import annotations

import re
from typing import Literal

import msgspec

Kind = Literal["gauge", "counter", "histogram"]

CONTROLLER = "controller"
BROKER = "broker"
BOTH = (CONTROLLER, BROKER)


class Metric(msgspec.Struct, frozen=True, kw_only=True):
    """One metric, with Kafka's name if Kafka has it. A counter is shown as `name` + `_total`."""

    name: str
    kind: Kind
    unit: str
    text: str
    roles: tuple[str, ...] = BOTH
    labels: tuple[str, ...] = ()

    @property
    def shown_name(self) -> str:
        return f"{self.name}_total" if self.kind == "counter" else self.name


def prometheus_name(domain: str, group: str, name: str) -> str:
    """The Prometheus name of an MBean, such as `kafka.controller`, `KafkaController`,
    `ActiveControllerCount`: the parts joined with `_`, with each run of characters that Prometheus does not
    allow replaced by one `_`."""
    return re.sub(r"[^A-Za-z0-9_]+", "_", f"{domain}_{group}_{name}")


def kafka_metric(
    domain: str,
    group: str,
    name: str,
    unit: str,
    text: str,
    *,
    kind: Kind = "gauge",
    roles: tuple[str, ...] = BOTH,
    labels: tuple[str, ...] = (),
) -> Metric:
    """A metric of Kafka with an MBean `type=...,name=...`, by default a gauge."""
    return Metric(
        name=prometheus_name(domain, group, name),
        kind=kind,
        unit=unit,
        text=text,
        roles=roles,
        labels=labels,
    )


def attribute_metric(group: str, name: str, unit: str, text: str, **more: tuple[str, ...]) -> Metric:
    """A metric that is an attribute of an MBean `kafka.server:type=...`, as Kafka's newer metrics are."""
    return Metric(
        name=prometheus_name("kafka.server", group, name),
        kind="gauge",
        unit=unit,
        text=text,
        roles=more.get("roles", BOTH),
        labels=more.get("labels", ()),
    )
