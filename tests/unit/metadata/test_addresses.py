"""Addresses as text: an IPv6 host is in brackets, or its last group reads as a port."""

from __future__ import annotations

import pytest

from metaquorum.metadata.text.addresses import address_text, listener_text


@pytest.mark.parametrize(
    ("host", "text"),
    [("node-1", "node-1:9093"), ("10.0.0.1", "10.0.0.1:9093"), ("::1", "[::1]:9093"), ("", ":9093")],
)
def test_an_address(host: str, text: str) -> None:
    assert address_text(host, 9093) == text
    assert listener_text("CONTROLLER", host, 9093) == f"CONTROLLER://{text}"
