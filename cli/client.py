"""Blocking calls on the active controller for commands, each bounded by --timeout."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import click
import msgspec

from metaquorum.cli.errors import Failure
from metaquorum.cli.given import FiniteRange, GivenPath
from metaquorum.cli.layout import DEFAULT_DIRECTORY, MANIFEST, open_layout
from metaquorum.clients.quorum.admin import AdminClient, BlockingClient
from metaquorum.clients.quorum.nodes import BrokerAnswer, NodeAnswer, describe_broker_nodes, describe_nodes
from metaquorum.clients.search import Address, ClientError, parse_bootstrap
from metaquorum.config.security import TlsFiles
from metaquorum.lines import one_line
from metaquorum.metadata.errors import ApiError
from metaquorum.metadata.image.types import BrokerRegistration
from metaquorum.metadata.requests.common import DescribeQuorumResponse
from metaquorum.network.tls import TlsMaterial

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
DEFAULT_TIMEOUT_S = 10.0
CONTROLLERS_VARIABLE = "METAQUORUM_BOOTSTRAP_CONTROLLERS"
_POLL_S = 0.05


class TlsOptions(msgspec.Struct, frozen=True, kw_only=True):
    """PEM files for a cluster that uses TLS. All None: plaintext."""

    keystore: Path | None = None
    truststore: Path | None = None

    def material(self) -> TlsMaterial | None:
        """Loads the files. Raises ConfigError."""
        if self.truststore is None and self.keystore is None:
            return None
        return TlsMaterial.load(TlsFiles(keystore=self.keystore, truststore=self.truststore))


class ClientOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Where the cluster is, as given on the command line."""

    bootstrap: str | None
    timeout_s: float
    tls: TlsOptions
    command_config: Path | None = None
    """For commands that may also ask controllers in Kafka's protocol."""
    spent_s: float = 0.0
    """How much of the time limit is over already."""

    @property
    def timeout_ms(self) -> int:
        return max(1, int(self.timeout_s * 1000))

    def open(self) -> ClusterClient:
        """A client that is not connected yet. Without --bootstrap, of the local cluster. Raises Failure."""
        return ClusterClient(self._named(), timeout_s=self.timeout_s, spent_s=self.spent_s, tls=self.tls)

    def addresses(self) -> tuple[Address, ...]:
        """The controllers' addresses. Without --bootstrap, those of the local cluster. Raises Failure."""
        try:
            return parse_bootstrap(self._named())
        except ClientError as error:
            raise Failure(one_line(error)) from error

    def nodes(self) -> tuple[NodeAnswer, ...]:
        """The answer of each named controller. Without --bootstrap, of the local cluster's. Raises Failure
        only if no controller is named."""
        addresses = self.addresses()
        tls = self.tls.material()
        return asyncio.run(describe_nodes(addresses, timeout_ms=self.timeout_ms, tls=tls))

    def broker_nodes(self, named: Sequence[str]) -> tuple[BrokerAnswer, ...]:
        """The answer of each named broker; if none is named, of each registered broker. Raises Failure if the
        controllers are needed for that and do not answer."""
        try:
            addresses = [each for text in named for each in parse_bootstrap(text)]
        except ClientError as error:
            raise Failure(one_line(error)) from error
        if not named:
            with self.open() as cluster:
                found = [each.grpc_endpoint for each in cluster.brokers()]
            addresses = [(each.host, each.port) for each in found if each is not None]
        tls = self.tls.material()
        return asyncio.run(describe_broker_nodes(addresses, timeout_ms=self.timeout_ms, tls=tls))

    def _named(self) -> str:
        if self.bootstrap is not None:
            return self.bootstrap
        directory = Path(DEFAULT_DIRECTORY)
        if not (directory / MANIFEST).is_file():
            raise Failure(
                f"no cluster to connect to: {directory} has none; give --bootstrap-controllers host:port of"
                " a controller, or run: metaquorum local up"
            )
        return open_layout(directory).bootstrap


def reach_options(command: F) -> F:
    """Adds --timeout and the TLS files to a command, which gets them as `timeout_s` and `tls`."""

    @click.option(
        "--timeout",
        metavar="SECONDS",
        type=FiniteRange(min=0.1),
        default=DEFAULT_TIMEOUT_S,
        show_default=True,
        help="Request timeout in seconds.",
    )
    @click.option(
        "--truststore",
        type=GivenPath(path_type=Path),
        help="PEM file with the CA certificates of the cluster; enables TLS.",
    )
    @click.option(
        "--keystore",
        type=GivenPath(path_type=Path),
        help="PEM file with the client's private key and certificate chain.",
    )
    @functools.wraps(command)
    def wrapped(
        *args: Any, timeout: float, truststore: Path | None, keystore: Path | None, **more: Any
    ) -> Any:
        tls = TlsOptions(keystore=keystore, truststore=truststore)
        return command(*args, timeout_s=timeout, tls=tls, **more)

    return wrapped  # type: ignore[return-value]


def client_options(command: F) -> F:
    """Adds --bootstrap-controllers, --timeout and the TLS files to a command,
    which gets them as `options`."""

    @click.option(
        "--bootstrap-controllers",
        "-b",
        "bootstrap",
        envvar=CONTROLLERS_VARIABLE,
        metavar="HOST:PORT,...",
        help="Controllers to connect to. Default: those of the local cluster.",
    )
    @reach_options
    @functools.wraps(command)
    def wrapped(*args: Any, bootstrap: str | None, timeout_s: float, tls: TlsOptions, **more: Any) -> Any:
        options = ClientOptions(bootstrap=bootstrap, timeout_s=timeout_s, tls=tls)
        return command(*args, options=options, **more)

    return wrapped  # type: ignore[return-value]


class ClusterClient:
    """Blocking calls on one cluster. Each raises ApiError if it is refused, Failure
    if no controller answers."""

    def __init__(self, bootstrap: str, *, timeout_s: float, tls: TlsOptions, spent_s: float = 0.0) -> None:
        material = tls.material()
        self._timeout_s = timeout_s
        timeout_ms, spent_ms = max(1, round(timeout_s * 1000)), round(spent_s * 1000)
        try:
            self._client = BlockingClient(bootstrap, timeout_ms=timeout_ms, spent_ms=spent_ms, tls=material)
        except ClientError as error:
            raise Failure(one_line(error)) from error

    def __enter__(self) -> ClusterClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._client.close()

    def call(self, method: Callable[[AdminClient], Coroutine[Any, Any, T]]) -> T:
        """Runs one call of the client, for groups of commands that bring their own."""
        try:
            return self._client.call(method)
        except ClientError as error:
            raise Failure(one_line(error)) from error

    def quorum(self) -> DescribeQuorumResponse:
        return self.call(lambda client: client.describe_quorum())

    def wait_for_new_leader(self, after_epoch: int) -> DescribeQuorumResponse:
        """The quorum as soon as a leader of a later epoch answers. Raises Failure at the timeout."""
        deadline = time.monotonic() + self._timeout_s
        while time.monotonic() < deadline:
            try:
                quorum = self.quorum()
            except (ApiError, Failure):
                continue
            if quorum.leader_epoch > after_epoch and quorum.leader_id >= 0:
                return quorum
            time.sleep(_POLL_S)
        raise Failure(f"no new leader within {self._timeout_s:g} s; see: metaquorum quorum describe")

    def transfer(self, target_id: int | None) -> None:
        self.call(lambda client: client.transfer_leadership(target_id))

    def brokers(self) -> list[BrokerRegistration]:
        """Every registered broker, by id."""
        return list(self.call(lambda client: client.list_brokers()).brokers)
