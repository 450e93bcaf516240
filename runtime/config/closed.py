"""Closed by default: a node does not start a listener that would accept clients without authentication.

Owns this check. Does not resolve names: the caller does. Single keys are checked in `load`.
"""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import ip_address

from metaquorum.runtime.config.addresses import Listener
from metaquorum.runtime.config.node import NodeConfig
from metaquorum.runtime.errors import ConfigError

ALLOW = "allow.insecure.listeners"


def check_closed(config: NodeConfig, addresses: Callable[[str], list[str]]) -> None:
    """Raises ConfigError for a listener that other machines can reach and that does not authenticate clients.
    `addresses` returns the IP addresses of a host name, none for an unknown one."""
    if config.text(ALLOW) == "true":
        return
    figures = () if config.metrics_listener is None else (config.metrics_listener,)
    for listener in (*config.listeners, *figures):
        if not _knows_clients(config, listener) and not _is_loopback(listener.host, addresses):
            kafka = listener in config.kafka_listeners
            configure = "use SASL or ssl.client.auth=required" if kafka else "use ssl.client.auth=required"
            if listener in figures:
                configure = "use https in metrics.listener with ssl.client.auth=required"
            where = f"{listener.host or 'every interface'}:{listener.port}"
            raise ConfigError(
                f"{config.path}: listener {listener.name} on {where} takes clients of other machines without "
                f"authentication: {configure} (docs/security.md), or accept that with {ALLOW}=true"
            )


def _knows_clients(config: NodeConfig, listener: Listener) -> bool:
    """True if the listener authenticates its clients."""
    access = config.access.get(listener.name)
    if access is None:
        return listener.is_tls and config.tls.client_auth
    return bool(access.mechanisms) or (listener.is_tls and access.client_auth == "required")


def _is_loopback(host: str, addresses: Callable[[str], list[str]]) -> bool:
    """True if only this machine can reach a host, or if the host is unknown: no one can listen on it."""
    found = addresses(host) if host else [""]
    return all(each and ip_address(each.partition("%")[0]).is_loopback for each in found)
