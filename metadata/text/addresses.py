"""Addresses and listeners as text, for people and for lists of addresses."""

from __future__ import annotations


def address_text(host: str, port: int) -> str:
    """`host:port`, an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def listener_text(name: str, host: str, port: int) -> str:
    """`NAME://host:port`, as in `listeners`."""
    return f"{name}://{address_text(host, port)}"


def may_be_host(host: str) -> bool:
    """Whether a name can be looked up at all. Python raises UnicodeError, no OSError, for a name with an
    empty part (`a..b`), with one of more than 63 characters (RFC 1035), or with bytes that are no text."""
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    return True


def plain_host(host: str) -> str:
    """A peer's address as rules and people write it: a socket for IPv6 and IPv4 shows `::ffff:10.0.0.1`."""
    mapped = host.removeprefix("::ffff:")
    return mapped if "." in mapped else host
