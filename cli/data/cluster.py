"""Clients of librdkafka for `produce` and `consume`, against any cluster that speaks Kafka's protocol."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import click
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from metaquorum.cli.cluster import ClusterOptions
from metaquorum.cli.errors import Failure
from metaquorum.clients.kafka.cluster import client_context
from metaquorum.clients.kafka.connection import (
    ConnectionFailed,
    HostUnknown,
    LoginRefused,
    TlsFailed,
    WrongProtocol,
    connect,
)
from metaquorum.clients.kafka.login import log_in
from metaquorum.clients.search import ClientError, parse_bootstrap
from metaquorum.config.security import OAUTHBEARER
from metaquorum.lines import one_line
from metaquorum.metadata.settings.topic_names import name_problem
from metaquorum.metadata.text.addresses import address_text
from metaquorum.network.tls import TlsMaterial
from metaquorum.rpc.reach import UNRESOLVED

LOOK_MAX_S = 2.0
SLICE_S = 0.25
"""Longest call into librdkafka, in seconds: an interrupt waits for its end."""
TOKEN_KEPT_S = 3600
"""Seconds after which librdkafka asks for the token of the token file again."""
_SAYS_NOTHING = frozenset({KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT})
_RETRIABLE = frozenset({KafkaError.LEADER_NOT_AVAILABLE, KafkaError._TRANSPORT, KafkaError._TIMED_OUT})
_BROKER_PREFIX = re.compile(r"^\w+://\S+: ")
_TIMES = re.compile(r" \(after \d+ms in state [^()]*\)$")
"""What librdkafka puts around a reason: a name of its own for the broker, and its state."""
_UNRESOLVED = re.compile(r"Failed to resolve '([^']+)'")
_NO_COORDINATOR = frozenset(
    {
        *_RETRIABLE,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._WAIT_COORD,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.NOT_COORDINATOR,
    }
)

T = TypeVar("T")

property_option = click.option(
    "--property",
    "properties",
    metavar="KEY=VALUE",
    multiple=True,
    help="A setting of librdkafka, such as sasl.mechanism=PLAIN; may be repeated.",
)


class Problems:
    """The last connection problem that librdkafka reported. `settings` has the callbacks."""

    def __init__(self) -> None:
        self._last: str | None = None
        self.is_about_login = False
        self.unresolved: set[str] = set()
        """Addresses, as they were given, whose host name has no address."""
        self._logger = logging.Logger("librdkafka")
        self._logger.addHandler(logging.NullHandler())

    def settings(self) -> dict[str, Any]:
        return {"error_cb": self._take, "logger": self._logger}

    def _take(self, error: KafkaError) -> None:
        self.is_about_login = self.is_about_login or error.code() == KafkaError._AUTHENTICATION
        if error.code() == KafkaError._RESOLVE:
            self.unresolved.update(_UNRESOLVED.findall(str(error.str())))
        if error.code() not in _SAYS_NOTHING or self._last is None:
            self._last = _BROKER_PREFIX.sub("", _TIMES.sub("", one_line(error.str())))

    def text(self) -> str:
        return self._last or "no answer"


class KafkaCluster:
    """A cluster as the user named it. Raises Failure if no address speaks Kafka's protocol."""

    def __init__(self, options: ClusterOptions, properties: Sequence[str]) -> None:
        self.problems = Problems()
        self.timeout_s = options.timeout_s
        self._servers = options.servers()
        given, login = _given(properties), _login(options)
        self._looked = asyncio.run(_look(options, self._servers, has_login=not _names_login(given)))
        if self._looked is not None and options.timeout_s <= LOOK_MAX_S:
            raise self.silent()
        self.settings: dict[str, Any] = {
            "bootstrap.servers": self._servers,
            "client.id": "metaquorum",
            **login,
            **self.problems.settings(),
            **given,
        }

    def make(self, kind: Callable[[dict[str, Any]], T], settings: dict[str, Any]) -> T:
        """A client of librdkafka. Raises Failure for settings that librdkafka refuses."""
        try:
            return kind({**self.settings, **settings})
        except (KafkaException, ValueError, TypeError) as error:
            raise Failure(f"librdkafka refuses its settings: {text_of(error)}; correct --property") from error

    def topic(self, client: Any, name: str) -> Any:
        """The topic with its partitions. Raises Failure if the topic does not exist or no broker answers."""
        if (problem := name_problem(name)) is not None:  # librdkafka refuses it without a reason
            raise Failure(problem)
        return self.asked(
            lambda s: client.list_topics(name, timeout=s), lambda found: _good_topic(found, name), client
        )

    def partitions_now(self, client: Any, name: str) -> list[int] | None:
        """The topic's partitions from one request; None: no answer now. Raises Failure for a topic that does
        not exist. Safe while a consumer reads; `asked` is not: it polls, and would take records away."""
        try:
            topic = _good_topic(client.list_topics(name, timeout=4 * SLICE_S), name)
        except KafkaException as error:
            if error.args[0].code() not in _RETRIABLE | _SAYS_NOTHING:
                raise Failure(text_of(error)) from error
            return None
        return None if topic is None else sorted(topic.partitions)

    def look_for_coordinator(self, client: Any, group: str, partition: TopicPartition) -> None:
        """Raises Failure if a group has no coordinator, or may not be read: librdkafka would wait, and
        reports it only to who reads. The consumer must not read yet."""
        deadline = time.monotonic() + self.timeout_s
        while True:
            try:
                client.committed(
                    [partition], timeout=max(0.01, min(SLICE_S * 4, deadline - time.monotonic()))
                )
                return
            except KafkaException as error:
                first: KafkaError = error.args[0]
                report = client.poll(0)
                if report is not None and report.error() is not None:
                    first = report.error()
                if first.code() not in _NO_COORDINATOR:
                    raise Failure(f"{name_of(first)}: group {group}: {first.str()}") from error
            self.check_login()
            if time.monotonic() >= deadline:
                raise Failure(
                    f"group {group} has no coordinator; `metaquorum groups describe {group}` shows why"
                )

    def asked(self, ask: Callable[[float], Any], good: Callable[[Any], T | None], client: Any) -> T:
        """What `good` makes of an answer, asked again within --timeout. Raises Failure. Polls in between, so
        it would take the records of a consumer that reads."""
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
            self.check_login()
            self._check_names()
            if time.monotonic() >= deadline:
                raise self.silent()

    def _check_names(self) -> None:
        """Raises Failure if librdkafka can resolve no host name, which it would retry for ever. `_look` may
        not have learned it: a name server that is slow to refuse outlasts it."""
        addresses = [address_text(host, port) for host, port in parse_bootstrap(self._servers)]
        if self.problems.unresolved.issuperset(addresses):
            raise Failure(f"{addresses[0]}: {UNRESOLVED}")

    def check_login(self) -> None:
        """Raises Failure if a broker has refused the login, which librdkafka would repeat for ever."""
        if self.problems.is_about_login:
            raise Failure(f"{self._servers}: the login is refused: {self.problems.text()}")

    def silent(self) -> Failure:
        """The failure to raise when there was no answer."""
        reason = self.problems.text()
        if self._looked is not None and not self.problems.is_about_login:
            reason = self._looked
        return Failure(
            f"no node at {self._servers} answered within {int(self.timeout_s * 1000)} ms (last: {reason}); "
            "check that the cluster runs and that the addresses are right"
        )


def _good_topic(metadata: Any, name: str) -> Any:
    """The topic of metadata, with its partitions; None: no answer now. Raises Failure for a missing topic."""
    topic = metadata.topics[name]
    if topic.error is not None and topic.error.code() not in _RETRIABLE:
        if topic.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise Failure(f"there is no topic {name}; create it with: metaquorum topics create {name}")
        raise Failure(f"{name_of(topic.error)}: {name}: {topic.error.str()}")
    return None if topic.error is not None or not topic.partitions else topic


def name_of(error: KafkaError) -> str:
    """Kafka's name of an error, otherwise librdkafka's."""
    return {"UNKNOWN_TOPIC_OR_PART": "UNKNOWN_TOPIC_OR_PARTITION"}.get(error.name(), error.name().lstrip("_"))


def text_of(error: Exception | KafkaError) -> str:
    """The text of an error on one line."""
    if isinstance(error, KafkaException):
        error = error.args[0]
    if isinstance(error, KafkaError):
        return f"{name_of(error)}: {one_line(error.str())}"
    return one_line(error)


def _given(properties: Sequence[str]) -> dict[str, str]:
    given = {}
    for entry in properties:
        name, separator, value = entry.partition("=")
        if not separator:
            raise click.UsageError(f"--property {entry!r} has no value; write KEY=VALUE")
        given[name.strip()] = value
    return given


def _login(options: ClusterOptions) -> dict[str, Any]:
    """The login, as settings of librdkafka. Files are read here first, so that errors have one line. Raises
    Failure for a login that librdkafka does not support."""
    security = options.security()
    kind = ("SASL_" if security.login else "") + ("PLAINTEXT" if security.tls is None else "SSL")
    settings: dict[str, Any] = {"security.protocol": kind if security.login or security.tls else "PLAINTEXT"}
    if security.tls is not None:
        TlsMaterial.load(security.tls)
        if security.tls.truststore is not None:
            settings["ssl.ca.location"] = str(security.tls.truststore)
        if security.tls.keystore is not None:
            settings["ssl.certificate.location"] = settings["ssl.key.location"] = str(security.tls.keystore)
        if not security.checks_names:
            settings["ssl.endpoint.identification.algorithm"] = "none"
    login = security.login
    if login is None:
        return settings
    if login.by_token:
        raise Failure("librdkafka does not log in with delegation tokens; use a user's own credential")
    settings["sasl.mechanism"] = login.mechanism
    if login.mechanism == OAUTHBEARER:
        token = login.password
        settings["oauth_cb"] = lambda _: (token, time.time() + TOKEN_KEPT_S)
    else:
        settings |= {"sasl.username": login.user, "sasl.password": login.password}
    return settings


def _names_login(given: Mapping[str, str]) -> bool:
    """Whether --property says how to log in, so that only librdkafka knows."""
    return any(name.startswith(("security.", "sasl.", "ssl.", "enable.ssl.")) for name in given)


async def _look(options: ClusterOptions, servers: str, *, has_login: bool) -> str | None:
    """Why none of the named brokers answers; None: one does. `has_login`: the login in `options` is the whole
    one. Raises Failure for what a person has to correct first: librdkafka would retry."""
    reason = "no answer"
    unknown = 0
    timeout_s = min(LOOK_MAX_S, options.timeout_s)
    try:
        addresses = parse_bootstrap(servers)
    except ClientError as error:
        raise Failure(one_line(error)) from error
    security = options.security()
    tls = client_context(security)
    for host, port in addresses:
        try:
            connection = await connect(
                host,
                port,
                client_id="metaquorum",
                tls=tls,
                answer_max_bytes=1024 * 1024,
                timeout_s=timeout_s,
            )
            if has_login and security.login is not None:
                await log_in(connection, security.login, timeout_s=timeout_s)
        except (ConnectionFailed, TimeoutError) as error:
            reason = str(error) or reason
            unknown += isinstance(error, HostUnknown)
            is_refused = has_login and isinstance(error, TlsFailed | LoginRefused | WrongProtocol)
            if is_refused or unknown == len(addresses):
                raise Failure(f"{address_text(host, port)}: {one_line(error)}") from error
            continue
        connection.close()
        return None
    return reason
