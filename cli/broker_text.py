"""Brokers of an image as rows and JSON. Pure text."""

from __future__ import annotations

from typing import Any

from metadata.image import MetadataImage
from metadata.image.types import BrokerRegistration
from storage.uuids import uuid_to_text

COLUMNS = ("ID", "STATE", "EPOCH", "RACK", "ENDPOINTS", "LEADS", "REPLICAS")
SECURITY_PROTOCOLS = {0: "PLAINTEXT", 1: "SSL", 2: "SASL_PLAINTEXT", 3: "SASL_SSL"}


def broker_state(broker: BrokerRegistration) -> str:
    """The controller's view of a broker (K13): fenced, running or in controlled shutdown."""
    if broker.in_controlled_shutdown:
        return "controlled shutdown"
    return "fenced" if broker.fenced else "running"


def broker_json(image: MetadataImage, broker: BrokerRegistration) -> dict[str, Any]:
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
                    endpoint.security_protocol, endpoint.security_protocol
                ),
            }
            for endpoint in broker.endpoints
        ],
        "features": {
            feature.name: [feature.min_supported_version, feature.max_supported_version]
            for feature in broker.features
        },
        "directories": [uuid_to_text(directory) for directory in broker.directories],
        "leads": len(image.topics.rows_led_by(broker.broker_id)),
        "replicas": len(image.topics.rows_with_replica(broker.broker_id)),
    }


def broker_row(image: MetadataImage, broker: BrokerRegistration) -> tuple[object, ...]:
    """One row under `COLUMNS`."""
    found = broker_json(image, broker)
    endpoints = ",".join(f"{one['name']}://{one['host']}:{one['port']}" for one in found["endpoints"])
    return (
        broker.broker_id,
        found["state"],
        broker.epoch,
        broker.rack,
        endpoints or None,
        found["leads"],
        found["replicas"],
    )


def describe_text(image: MetadataImage, broker: BrokerRegistration) -> str:
    """One `name: value` line for everything that is known of a broker."""
    found = broker_json(image, broker)
    endpoints = ", ".join(
        f"{one['name']}://{one['host']}:{one['port']} ({one['securityProtocol']})"
        for one in found["endpoints"]
    )
    features = ", ".join(f"{name} {low}..{high}" for name, (low, high) in found["features"].items())
    rows = (
        ("Broker", broker.broker_id),
        ("State", found["state"]),
        ("Epoch", broker.epoch),
        ("Incarnation", found["incarnationId"]),
        ("Rack", broker.rack or "none"),
        ("Endpoints", endpoints or "none"),
        ("Features", features or "none"),
        ("Directories", ", ".join(found["directories"]) or "none"),
        ("Leads", f"{found['leads']} partitions"),
        ("Replicas", f"{found['replicas']} partitions"),
    )
    return "\n".join(f"{name + ':':<14}{value}" for name, value in rows)
