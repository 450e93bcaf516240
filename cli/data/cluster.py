"""Where `produce` and `consume` find Kafka's protocol, and librdkafka's words for errors in one line.

Owns the settings of every client and what a named topic must be. Any cluster of Kafka's will do: an address
that speaks Kafka's protocol is taken as it is, a node that speaks gRPC alone is asked for its brokers.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
from confluent_kafka import KafkaError, KafkaException

from metaquorum.cli.client import ClientOptions
from metaquorum.cli.errors import Failure, one_line
from metaquorum.cli.layout import DEFAULT_DIRECTORY, MANIFEST, open_layout
from metaquorum.metadata.errors import ApiError
from metaquorum.metadata.image import GRPC_LISTENER
from metaquorum.runtime.client.admin import Address, AdminClient, ClientError
from metaquorum.runtime.kafka.client.connection import connect
from metaquorum.runtime.kafka.client.errors import ConnectionFailed

LOOK_MAX_S = 2.0
SLICE_S = 0.25
"""How long one call into librdkafka may take, so that an interrupt is heard."""
_SECURITY = {0: "PLAINTEXT", 1: "SSL", 2: "SASL_PLAINTEXT", 3: "SASL_SSL"}
_SAYS_NOTHING = frozenset({KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT})
_RETRIABLE = frozenset({KafkaError.LEADER_NOT_AVAILABLE, KafkaError._TRANSPORT, KafkaError._TIMED_OUT})

T = TypeVar("T")

property_option = click.option(
    "--property",
    "properties",
    metavar="KEY=VALUE",
    multiple=True,
    help="A setting of librdkafka, such as sasl.mechanism=PLAIN; may be repeated.",
)


class Problems:
    """What librdkafka reported last of connections; `settings` has the callbacks."""

    def __init__(self) -> None:
        self._last: str | None = None
        self.is_about_login = False
        self._logger = logging.Logger("librdkafka")
        self._logger.addHandler(logging.NullHandler())

    def settings(self) -> dict[str, Any]:
        return {"error_cb": self._take, "logger": self._logger}

    def _take(self, error: KafkaError) -> None:
        self.is_about_login = self.is_about_login or error.code() == KafkaError._AUTHENTICATION
        if error.code() not in _SAYS_NOTHING or self._last is None:
            self._last = error.str()

    def text(self) -> str:
        return self._last or "no answer"


class KafkaCluster:
    """A cluster as the user named it. Raises Failure where no address leads to Kafka's protocol."""

    def __init__(self, options: ClientOptions, properties: Sequence[str]) -> None:
        self.problems = Problems()
        self.timeout_s = options.timeout_s
        servers, protocol, self._looked = _servers(options)
        self._servers = servers
        self.settings: dict[str, Any] = {
            "bootstrap.servers": servers,
            "client.id": "metaquorum",
            "security.protocol": protocol,
            **_tls(options),
            **self.problems.settings(),
            **_given(properties),
        }

    def make(self, kind: Callable[[dict[str, Any]], T], settings: dict[str, Any]) -> T:
        """A client of librdkafka. Raises Failure for settings that it does not take."""
        try:
            return kind({**self.settings, **settings})
        except (KafkaException, ValueError, TypeError) as error:
            raise Failure(f"librdkafka refuses its settings: {text_of(error)}; correct --property") from error

    def topic(self, client: Any, name: str) -> Any:
        """The topic with its partitions. Raises Failure for one that is not there, and without an answer."""

        def look(timeout_s: float) -> Any:
            return client.list_topics(name, timeout=timeout_s)

        def good(found: Any) -> Any:
            topic = found.topics[name]
            if topic.error is not None and topic.error.code() not in _RETRIABLE:
                if topic.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise Failure(
                        f"there is no topic {name}; create it with: metaquorum topics create {name}"
                    )
                raise Failure(f"{name_of(topic.error)}: {name}: {topic.error.str()}")
            return None if topic.error is not None or not topic.partitions else topic

        return self.asked(look, good, client)

    def asked(self, ask: Callable[[float], Any], good: Callable[[Any], T | None], client: Any) -> T:
        """What `good` makes of an answer, asked again within --timeout. Raises Failure."""
        deadline = time.monotonic() + self.timeout_s
        while True:
            try:
                found = good(ask(max(0.01, min(SLICE_S * 4, deadline - time.monotonic()))))
                if found is not None:
                    return found
            except KafkaException as error:
                first: KafkaError = error.args[0]
                if first.code() not in _RETRIABLE | _SAYS_NOTHING:
                    raise Failure(f"{name_of(first)}: {first.str()}") from error
            client.poll(0)
            if time.monotonic() >= deadline:
                raise self.silent()

    def silent(self) -> Failure:
        """What to say when there was no answer."""
        if self._looked is not None and not self.problems.is_about_login:
            return Failure(self._looked)
        return _silent(self._servers, self.timeout_s, self.problems.text())


def _silent(servers: str, timeout_s: float, reason: str) -> Failure:
    return Failure(
        f"no node at {servers} answered within {int(timeout_s * 1000)} ms (last: {reason}); check that the "
        "cluster runs and that the addresses are right"
    )


def name_of(error: KafkaError) -> str:
    """Kafka's name of an error, or librdkafka's."""
    return {"UNKNOWN_TOPIC_OR_PART": "UNKNOWN_TOPIC_OR_PARTITION"}.get(error.name(), error.name().lstrip("_"))


def text_of(error: Exception | KafkaError) -> str:
    """One line."""
    if isinstance(error, KafkaException):
        error = error.args[0]
    if isinstance(error, KafkaError):
        return f"{name_of(error)}: {one_line(error.str())}"  # type: ignore[arg-type]
    return one_line(error)


def _given(properties: Sequence[str]) -> dict[str, str]:
    found = {}
    for entry in properties:
        name, separator, value = entry.partition("=")
        if not separator:
            raise click.UsageError(f"--property {entry!r} has no value; write KEY=VALUE")
        found[name.strip()] = value
    return found


def _tls(options: ClientOptions) -> dict[str, str]:
    """PEM files as librdkafka wants them; the files are read before, for errors in one line."""
    options.tls.material()
    found = {}
    if options.tls.truststore is not None:
        found["ssl.ca.location"] = str(options.tls.truststore)
    if options.tls.keystore is not None:
        found["ssl.certificate.location"] = found["ssl.key.location"] = str(options.tls.keystore)
    return found


def _servers(options: ClientOptions) -> tuple[str, str, str | None]:
    """(bootstrap.servers, security.protocol, why a first look found no node)."""
    material = options.tls.material()
    usual = "PLAINTEXT" if material is None else "SSL"
    local = Path(DEFAULT_DIRECTORY)
    if options.bootstrap is None and (local / MANIFEST).is_file():
        return open_layout(local).bootstrap_servers, usual, None
    addresses = options.addresses()
    named = ",".join(_text(each) for each in addresses)
    found = asyncio.run(_look(options, addresses))
    return found if isinstance(found, tuple) else (named, usual, found)


async def _look(options: ClientOptions, addresses: Sequence[Address]) -> tuple[str, str, None] | str | None:
    """None: the addresses speak Kafka's protocol; a text: why none of them seems to. Raises Failure."""
    material = options.tls.material()
    timeout_s = min(LOOK_MAX_S, options.timeout_s)
    reason = "no answer"
    for host, port in addresses:
        try:
            connection = await connect(
                host,
                port,
                client_id="metaquorum",
                tls=None if material is None else material.client_context(),
                answer_max_bytes=1024 * 1024,
                timeout_s=timeout_s,
                looks_for_tls=False,
            )
        except (ConnectionFailed, TimeoutError) as error:
            reason = str(error) or reason
            continue
        connection.close()
        return None
    # Asked by librdkafka, too: it may have settings (SASL, say) that this look has not.
    try:
        async with AdminClient(addresses, timeout_ms=max(1, int(timeout_s * 1000)), tls=material) as client:
            listing = await client.list_brokers(stale=True)
    except (ClientError, ApiError) as error:
        if options.timeout_s <= timeout_s:
            raise _silent(",".join(map(_text, addresses)), options.timeout_s, reason) from error
        return one_line(error)
    endpoints = [
        at
        for broker in listing.brokers
        for at in broker.endpoints
        if not at.name.startswith(GRPC_LISTENER) and at.security_protocol == (0 if material is None else 1)
    ]
    if not endpoints:
        raise Failure("no broker of this cluster has registered a listener for Kafka's protocol; start one")
    return (
        ",".join(_text((at.host, at.port)) for at in endpoints),
        _SECURITY[endpoints[0].security_protocol],
        None,
    )


def _text(address: Address) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
