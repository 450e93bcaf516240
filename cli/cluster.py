"""Blocking calls in Kafka's protocol for commands, each bounded by --timeout.

    @cluster_options
    def list_(options: ClusterOptions) -> None:
        with options.open() as cluster:
            found = cluster.call(list_topics)                          # a function of a KafkaClient
            found = cluster.call(lambda client: describe_topics(client, names))

`call` raises ApiError if the cluster refuses, and Failure, with one line of text, if no node answers.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import click
import msgspec
from click.core import ParameterSource

from metaquorum.cli.client import CONTROLLERS_VARIABLE, ClientOptions, TlsOptions, reach_options
from metaquorum.cli.errors import Failure
from metaquorum.cli.given import GivenPath
from metaquorum.cli.layout import DEFAULT_DIRECTORY, MANIFEST, open_layout
from metaquorum.clients.kafka.cluster import CLIENT_ID, KafkaClient
from metaquorum.clients.kafka.grpc_way import ControllersClient
from metaquorum.clients.kafka.login import ClientSecurity, load_client_security
from metaquorum.clients.quorum.admin import AdminClient
from metaquorum.clients.search import ClientError, parse_bootstrap
from metaquorum.config.keys import KAFKA_PROTOCOL
from metaquorum.config.security import TlsFiles
from metaquorum.lines import one_line
from metaquorum.rpc.reach import LOOK_S, spoken_at
from metaquorum.wire.errors import EncodeError

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
_LEAST_S = 0.1
"""What a request gets at least, however long the addresses took."""


class ClusterOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Where the cluster is and how to log in, as given on the command line."""

    bootstrap: str | None
    timeout_s: float
    tls: TlsOptions
    command_config: Path | None = None
    controllers: str | None = None
    by_kafka: bool | None = None
    """Whether `controllers` are asked in Kafka's protocol; None until `settled`."""
    spent_s: float = 0.0
    """How much of the time limit was over then."""

    @property
    def timeout_ms(self) -> int:
        return max(1, round(self.timeout_s * 1000))

    @property
    def _spent_ms(self) -> int:
        return round(self.spent_s * 1000)

    def open(self, client_id: str = CLIENT_ID) -> OpenCluster:
        """A client that is not connected yet. Raises Failure and ConfigError."""
        try:
            return OpenCluster(self.settled()._client(client_id))
        except ClientError as error:
            raise Failure(one_line(error)) from error

    def _client(self, client_id: str) -> KafkaClient:
        if self.controllers is not None and not self.by_kafka:
            tls = self.tls.material()
            asks = AdminClient(
                self.controllers, timeout_ms=self.timeout_ms, spent_ms=self._spent_ms, tls=tls, gives_up=True
            )
            return ControllersClient(asks, timeout_ms=self.timeout_ms)
        return KafkaClient(
            self.controllers or self.servers(),
            timeout_ms=self.timeout_ms,
            spent_ms=self._spent_ms,
            security=self.security(),
            client_id=client_id,
            asks_brokers=self.controllers is None,
        )

    def settled(self) -> ClusterOptions:
        """These options, once it is known what the controllers speak; if one was silent, with the time that
        this took. Raises ClientError and ConfigError."""
        if self.by_kafka is not None:
            return self
        began_s = time.monotonic()
        by_kafka = self._asks_controllers_by_kafka(began_s)
        spent_s = time.monotonic() - began_s
        counted_s = 0.0 if spent_s < self._look_s else min(spent_s, self.timeout_s - _LEAST_S)
        return msgspec.structs.replace(self, by_kafka=by_kafka, spent_s=max(0.0, counted_s))

    def settled_or_failed(self) -> ClusterOptions:
        """Like `settled`, for commands. Raises Failure and ConfigError."""
        try:
            return self.settled()
        except ClientError as error:
            raise Failure(one_line(error)) from error

    @property
    def _look_s(self) -> float:
        """How long an address may be silent in one protocol: the last one is asked before half of the time is
        over, in two."""
        return min(LOOK_S, self.timeout_s / 4)

    def _asks_controllers_by_kafka(self, began_s: float) -> bool:
        """Whether the controllers are asked in Kafka's protocol: the first that answers speaks it, or there
        is a login, which gRPC does not have."""
        if self.controllers is None or self.command_config is not None:
            return self.controllers is not None
        tls = self.tls.material()
        for host, port in parse_bootstrap(self.controllers):
            protocol = spoken_at(host, port, tls, self._look_s)
            if protocol is not None or time.monotonic() - began_s >= self.timeout_s / 2:
                return protocol == KAFKA_PROTOCOL
        return False

    def servers(self) -> str:
        """`bootstrap.servers`; without --bootstrap the local cluster's brokers. Raises Failure."""
        if self.bootstrap is not None:
            return self.bootstrap
        directory = Path(DEFAULT_DIRECTORY)
        if not (directory / MANIFEST).is_file():
            raise Failure(
                f"no cluster to connect to: {directory} has none; give --bootstrap host:port of a broker,"
                " or run: metaquorum local up"
            )
        servers = open_layout(directory).bootstrap_servers
        if not servers:
            raise Failure(
                f"the local cluster in {directory} has no brokers; give --bootstrap host:port of one"
            )
        return servers

    def security(self) -> ClientSecurity:
        """The login. Raises ConfigError."""
        if self.command_config is not None:
            return load_client_security(self.command_config)
        if self.tls == TlsOptions():
            return ClientSecurity()
        return ClientSecurity(tls=TlsFiles(keystore=self.tls.keystore, truststore=self.tls.truststore))


def cluster_options(command: F) -> F:
    """Adds --bootstrap, --command-config, --timeout and the TLS files to a command, which gets them as
    `options`."""

    @click.option(
        "--bootstrap",
        "-b",
        envvar="METAQUORUM_BOOTSTRAP",
        metavar="HOST:PORT,...",
        help="Brokers to connect to. Default: those of the local cluster.",
    )
    @click.option(
        "--command-config",
        type=GivenPath(path_type=Path),
        help="Properties of a Kafka client: security.protocol, sasl.*, ssl.*.",
    )
    @reach_options
    @functools.wraps(command)
    def wrapped(
        *args: Any,
        bootstrap: str | None,
        command_config: Path | None,
        timeout_s: float,
        tls: TlsOptions,
        **more: Any,
    ) -> Any:
        if command_config is not None and tls != TlsOptions():
            raise click.UsageError("give the TLS files either in --command-config or as options")
        options = ClusterOptions(
            bootstrap=bootstrap, timeout_s=timeout_s, tls=tls, command_config=command_config
        )
        return command(*args, options=options, **more)

    return wrapped  # type: ignore[return-value]


def controllers_option(command: F) -> F:
    """Adds --bootstrap-controllers to a command for brokers that controllers answer in more detail over gRPC.
    The command gets their client options as `controllers`, None if it should use `options`: for brokers, or
    for controllers that speak Kafka's protocol."""

    @click.option(
        "--bootstrap-controllers",
        envvar=CONTROLLERS_VARIABLE,
        metavar="HOST:PORT,...",
        help="Connect to these controllers instead: they report more, and need no broker.",
    )
    @functools.wraps(command)
    def wrapped(*args: Any, options: ClusterOptions, bootstrap_controllers: str | None, **more: Any) -> Any:
        controllers = None
        is_local = options.bootstrap is None and (Path(DEFAULT_DIRECTORY) / MANIFEST).is_file()
        if bootstrap_controllers is not None or is_local:
            options = msgspec.structs.replace(options, controllers=bootstrap_controllers).settled_or_failed()
            if not options.by_kafka:
                controllers = ClientOptions(
                    bootstrap=bootstrap_controllers,
                    timeout_s=options.timeout_s,
                    spent_s=options.spent_s,
                    tls=options.tls,
                )
        return command(*args, options=options, controllers=controllers, **more)

    return wrapped  # type: ignore[return-value]


def also_controllers(command: F) -> F:
    """Adds --bootstrap-controllers to a command for brokers that controllers can answer as well (KIP-919).
    Must be below `cluster_options`."""

    @click.option(
        "--bootstrap-controllers",
        "--bootstrap-controller",
        "controllers",
        metavar="HOST:PORT,...",
        help="Connect to these controllers instead, which need no broker.",
    )
    @click.pass_context
    @functools.wraps(command)
    def wrapped(
        context: click.Context, /, *args: Any, options: ClusterOptions, controllers: str | None, **more: Any
    ) -> Any:
        names_brokers = context.get_parameter_source("bootstrap") is ParameterSource.COMMANDLINE
        if names_brokers and controllers is not None:
            raise click.UsageError("give either --bootstrap or --bootstrap-controllers")
        return command(*args, options=msgspec.structs.replace(options, controllers=controllers), **more)

    return wrapped  # type: ignore[return-value]


class OpenCluster:
    """Blocking calls on one cluster. Use as a context manager."""

    def __init__(self, client: KafkaClient) -> None:
        self._client = client
        self._runner = asyncio.Runner()

    def __enter__(self) -> OpenCluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._runner.run(self._client.close())
        self._runner.close()

    def call(self, method: Callable[[KafkaClient], Coroutine[Any, Any, T]]) -> T:
        """Runs one call to its end. Raises ApiError and Failure."""
        try:
            return self._runner.run(method(self._client))
        except ClientError as error:
            raise Failure(one_line(error)) from error
        except EncodeError as error:
            raise Failure(f"the request cannot be sent: {one_line(error)}") from error
