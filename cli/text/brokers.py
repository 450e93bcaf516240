"""Brokers as rows, lines and JSON, from registrations or from what other brokers report."""

from __future__ import annotations

from typing import Any

from metaquorum.clients.admin.cluster import ClusterBroker
from metaquorum.metadata.image.types import BrokerRegistration
from metaquorum.metadata.text.addresses import address_text, listener_text
from metaquorum.storage.uuids import uuid_to_text

COLUMNS = ("ID", "STATE", "EPOCH", "RACK", "ENDPOINTS", "DIRECTORIES")
SECURITY_PROTOCOLS = {0: "PLAINTEXT", 1: "SSL", 2: "SASL_PLAINTEXT", 3: "SASL_SSL"}


Broker = BrokerRegistration | ClusterBroker
"""A registration, as controllers have it, or what brokers report of each other in Kafka's protocol."""


def broker_state(broker: Broker) -> str:
    """The state of a broker as the controllers see it: running, fenced or in controlled shutdown; unknown if
    the broker that reports it has fenced itself."""
    if broker.fenced:
        return "fenced"
    if isinstance(broker, ClusterBroker):
        return "running" if broker.is_known else "unknown"
    return "controlled shutdown" if broker.in_controlled_shutdown else "running"


def broker_json(broker: Broker) -> dict[str, Any]:
    """A broker as JSON. If other brokers report it, without the fields that they do not know."""
    if isinstance(broker, ClusterBroker):
        return {
            "id": broker.broker_id,
            "state": broker_state(broker),
            "fenced": broker.fenced,
            "rack": broker.rack,
            "endpoints": [{"host": broker.host, "port": broker.port}],
        }
    return {
        "id": broker.broker_id,
        "state": broker_state(broker),
        "fenced": broker.fenced,
        "inControlledShutdown": broker.in_controlled_shutdown,
        "epoch": broker.epoch,
        "incarnationId": uuid_to_text(broker.incarnation_id),
        "rack": broker.rack,
        "endpoints": [
            {
                "name": endpoint.name,
                "host": endpoint.host,
                "port": endpoint.port,
                "securityProtocol": SECURITY_PROTOCOLS.get(
                    endpoint.security_protocol, str(endpoint.security_protocol)
                ),
            }
            for endpoint in broker.endpoints
        ],
        "features": {
            feature.name: [feature.min_supported_version, feature.max_supported_version]
            for feature in broker.features
        },
        "directories": [uuid_to_text(directory) for directory in broker.directories],
    }


def broker_row(broker: Broker) -> tuple[object, ...]:
    """One row under `COLUMNS`."""
    if isinstance(broker, ClusterBroker):
        endpoint = address_text(broker.host, broker.port)
        return broker.broker_id, broker_state(broker), None, broker.rack, endpoint, None
    endpoints = ",".join(listener_text(one.name, one.host, one.port) for one in broker.endpoints)
    state = broker_state(broker)
    return broker.broker_id, state, broker.epoch, broker.rack, endpoints or None, len(broker.directories)


def describe_text(broker: Broker) -> str:
    """One `name: value` line per known property of a broker."""
    values = broker_json(broker)
    if isinstance(broker, ClusterBroker):
        endpoint = address_text(broker.host, broker.port)
        known = {"Broker": broker.broker_id, "State": values["state"], "Rack": broker.rack or "none"}
        return _lines({**known, "Endpoints": endpoint})
    endpoints = ", ".join(
        f"{listener_text(one['name'], one['host'], one['port'])} ({one['securityProtocol']})"
        for one in values["endpoints"]
    )
    features = ", ".join(f"{name} {low}..{high}" for name, (low, high) in values["features"].items())
    return _lines(
        {
            "Broker": broker.broker_id,
            "State": values["state"],
            "Epoch": broker.epoch,
            "Incarnation": values["incarnationId"],
            "Rack": broker.rack or "none",
            "Endpoints": endpoints or "none",
            "Features": features or "none",
            "Directories": ", ".join(values["directories"]) or "none",
        }
    )


def _lines(values: dict[str, object]) -> str:
    return "\n".join(f"{name + ':':<14}{value}" for name, value in values.items())
