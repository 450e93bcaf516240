"""Finds out what the controllers speak, once at the start of a broker whose file does not say it (ADR 24)."""

from __future__ import annotations

import logging
import time

from metaquorum.config.keys import KAFKA_PROTOCOL, PROTOCOL_KEY
from metaquorum.config.node import NodeConfig
from metaquorum.metadata.text.addresses import address_text
from metaquorum.network.tls import NodeTls
from metaquorum.rpc.reach import spoken_at

WAIT_S = 10.0
"""How long controllers that start together with the broker may take to answer."""
ASK_AGAIN_S = 0.5

_log = logging.getLogger(__name__)


def found_protocol(config: NodeConfig, wait_s: float = WAIT_S) -> str:
    """What the first controller that answers speaks; Kafka's protocol if none answers in time. Blocks. Raises
    ConfigError for files of TLS that cannot be read."""
    tls = NodeTls(config).controllers
    addresses = [(voter.host, voter.port) for voter in config.voters] or list(config.bootstrap_servers)
    until_s = time.monotonic() + wait_s
    while True:
        for host, port in addresses:
            protocol = spoken_at(host, port, tls)
            if protocol is not None:
                name = "Kafka's protocol" if protocol == KAFKA_PROTOCOL else "gRPC"
                where = address_text(host, port)
                _log.info("controllers speak %s: %s answers so, and %s is not set", name, where, PROTOCOL_KEY)
                return protocol
        if time.monotonic() >= until_s:
            break
        time.sleep(ASK_AGAIN_S)
    named = ", ".join(address_text(*address) for address in addresses)
    _log.warning(
        "no controller answers at %s yet: this broker asks them by Kafka's protocol; set %s=grpc if they"
        " speak gRPC",
        named,
        PROTOCOL_KEY,
    )
    return KAFKA_PROTOCOL
