"""Where a caller finds a controller: at that controller's listener of the name by which the caller came."""

from __future__ import annotations

import pytest

from metaquorum.controller.server.kafka import listens_at
from metaquorum.listeners.services import Client
from metaquorum.metadata.image import ControllerRegistration, NodeEndpoint

NAMES = ("CONTROLLER", "SECURE")
REGISTERED = {
    node_id: ControllerRegistration(
        controller_id=node_id,
        incarnation_id=bytes([node_id]) * 16,
        endpoints=tuple(
            NodeEndpoint(name=name, host=f"node-{node_id}", port=1000 * node_id + at, security_protocol=0)
            for at, name in enumerate(NAMES)
        ),
    )
    for node_id in (1, 2, 3)
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("node_id", REGISTERED)
def test_the_endpoint_is_of_this_controller_and_this_listener(node_id: int, name: str) -> None:
    endpoint = listens_at(REGISTERED, node_id, Client(listener=name, address="10.0.0.1"))
    assert endpoint is not None
    assert (endpoint.name, endpoint.host) == (name, f"node-{node_id}")
    assert endpoint.port == 1000 * node_id + NAMES.index(name)


@pytest.mark.parametrize(("node_id", "name"), [(4, "CONTROLLER"), (1, "OTHER")])
def test_what_is_not_registered_is_not_guessed(node_id: int, name: str) -> None:
    assert listens_at(REGISTERED, node_id, Client(listener=name, address="10.0.0.1")) is None
