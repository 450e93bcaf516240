"""Closed unless opened: a node does not begin to listen where anyone could come in unknown."""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import ip_address

from metaquorum.runtime.config.addresses import Listener
from metaquorum.runtime.config.node import NodeConfig
from metaquorum.runtime.errors import ConfigError

ALLOW = "allow.insecure.listeners"


def check_closed(config: NodeConfig, addresses: Callable[[str], list[str]]) -> None:
    """Raises ConfigError for a listener that other machines reach and that takes clients without asking who
    they are. `addresses`: the IP addresses of a host's name, none for an unknown one."""
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
    """Whether clients that get in have shown who they are."""
    access = config.access.get(listener.name)
    if access is None:
        return listener.is_tls and config.tls.client_auth
    return bool(access.mechanisms) or (listener.is_tls and access.client_auth == "required")


def _is_loopback(host: str, addresses: Callable[[str], list[str]]) -> bool:
    """Whether only this machine reaches a host; an unknown host cannot be listened on anyway."""
    found = addresses(host) if host else [""]
    return all(each and ip_address(each.partition("%")[0]).is_loopback for each in found)
