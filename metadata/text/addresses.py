"""Addresses and listeners as text, for people and for lists of addresses."""

from __future__ import annotations


def address_text(host: str, port: int) -> str:
    """`host:port`, an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def listener_text(name: str, host: str, port: int) -> str:
    """`NAME://host:port`, as in `listeners`."""
    return f"{name}://{address_text(host, port)}"
