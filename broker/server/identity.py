"""Settles a broker's id before it opens its directories, and writes it into them (S0.1, S0.26).

A broker may format its own: it has no vote, so an emptied disk can lose nothing that was committed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from metaquorum.clients.quorum.admin import AdminClient, allocate_broker_id
from metaquorum.clients.search import ClientError
from metaquorum.config.node import UNKNOWN_NODE_ID, NodeConfig, process_rng
from metaquorum.errors import StartError
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.requests.common import AllocateBrokerIdRequest, AllocateBrokerIdResponse
from metaquorum.network.tls import TlsMaterial
from metaquorum.node.machine import OWN_PROCESS, Machine
from metaquorum.storage.disk.interface import Disk, join, make_durable_directory
from metaquorum.storage.errors import DiskError
from metaquorum.storage.files.meta_properties import (
    FILE_NAME,
    MetaProperties,
    load_meta_properties,
    store_meta_properties,
)
from metaquorum.storage.log.config import METADATA_DIRECTORY
from metaquorum.storage.uuids import random_uuid

ASIDE = ".no-identity"
"""Suffix for a metadata log that was found in a directory without meta.properties."""

_log = logging.getLogger(__name__)

Ask = Callable[[AllocateBrokerIdRequest], Awaitable[AllocateBrokerIdResponse]]


async def settle_identity(
    config: NodeConfig, tls: TlsMaterial | None, machine: Machine = OWN_PROCESS
) -> NodeConfig:
    """The configuration with the broker's id, which is in every directory when this returns.

    Raises StartError and StorageError. No identity is written before the id is settled.
    """
    if not config.generates_broker_id:
        return config
    directory = config.metadata_log_dir
    disk = machine.disk
    _make_directories(disk, config)
    lock = disk.lock(str(directory))  # two processes of one configuration must not become two brokers
    try:
        return await _settle(config, disk, tls)
    finally:
        lock.release()


async def _settle(config: NodeConfig, disk: Disk, tls: TlsMaterial | None) -> NodeConfig:
    explicit = None if config.node_id == UNKNOWN_NODE_ID else config.node_id
    try:
        identity = known_identity(explicit, _found(disk, config))
    except IdentityConflict as error:
        raise StartError(str(error)) from error
    if identity.node_id is not None and (identity.cluster_id is not None or not identity.unwritten):
        settled = config.with_node_id(identity.node_id)
        _write(disk, identity.unwritten, identity.node_id, identity.cluster_id)
        return settled
    timeout_ms = config.number("initial.broker.registration.timeout.ms")
    addresses = [(voter.host, voter.port) for voter in config.voters] or config.bootstrap_servers
    async with AdminClient(addresses, tls=tls, timeout_ms=timeout_ms) as client:
        try:
            node_id, cluster_id = await _from_controllers(config, identity, client, timeout_ms)
        except ApiError as error:
            raise StartError(f"the controllers did not assign an id to this broker: {error}") from error
        except ClientError as error:
            raise StartError(f"the request for this broker's id failed: {error}") from error
    settled = config.with_node_id(node_id)
    _write(disk, identity.unwritten, node_id, cluster_id)
    return settled


async def _from_controllers(
    config: NodeConfig, identity: KnownIdentity, client: AdminClient, timeout_ms: int
) -> tuple[int, str]:
    """(id, cluster id), one of which only the cluster knows."""
    if identity.node_id is not None:
        return identity.node_id, (await client.describe_quorum()).cluster_id
    request = AllocateBrokerIdRequest(
        request_id=random_uuid(process_rng()),
        cluster_id=identity.cluster_id,
        binding_key=config.binding_key,
        # An id is taken over only by a broker without any trace of its own id (S0.22).
        reuse_missing=identity.is_blank and config.flag("broker.id.reuse.missing"),
    )
    answer = await ask_until_settled(
        lambda asked: allocate_broker_id(client, asked), request, timeout_ms, asyncio.get_running_loop().time
    )
    if answer.broker_id is None or answer.source is None:
        raise ApiError(
            ErrorCode.REQUEST_TIMED_OUT,
            f"{answer.waiting_for}; the broker waited {timeout_ms} ms "
            "(initial.broker.registration.timeout.ms)",
        )
    _log.info("this broker is %d (%s)", answer.broker_id, answer.source.value)
    return answer.broker_id, answer.cluster_id


async def ask_until_settled(
    ask: Ask, request: AllocateBrokerIdRequest, timeout_ms: int, time_s: Callable[[], float]
) -> AllocateBrokerIdResponse:
    """Repeats the request as the answers require. Returns the last answer when the time is up."""
    deadline_s = time_s() + timeout_ms / 1000
    waiting_for = ""
    while True:
        answer = await ask(request)
        if answer.broker_id is not None or time_s() >= deadline_s:
            return answer
        if not waiting_for:
            waiting_for = answer.waiting_for
            _log.info("waiting for an id: %s", waiting_for)
        await asyncio.sleep(max(1, answer.retry_after_ms) / 1000)


# ---- directories ---------------------------------------------------------------------------------


def _paths(config: NodeConfig) -> list[str]:
    return [str(path) for path in dict.fromkeys((config.metadata_log_dir, *config.log_dirs))]


def _make_directories(disk: Disk, config: NodeConfig) -> None:
    """A directory whose disk fails is left for the opening step, unless it is the metadata log's."""
    for path in _paths(config):
        if disk.exists(path) and not disk.is_directory(path):
            raise StartError(f"{path} is a file: give a directory in log.dirs")
        with _tolerated(config, path):
            if not disk.exists(path):
                make_durable_directory(disk, path)


@contextlib.contextmanager
def _tolerated(config: NodeConfig, path: str) -> Iterator[None]:
    try:
        yield
    except DiskError as error:
        if path == str(config.metadata_log_dir):
            raise
        _log.warning("%s does not say which broker this is: %s", path, error)


def _found(disk: Disk, config: NodeConfig) -> list[IdentityFile]:
    identities = []
    for path in _paths(config):
        file = join(path, FILE_NAME)
        with _tolerated(config, path):
            if not disk.is_directory(path):
                continue
            properties = load_meta_properties(disk, path) if disk.exists(file) else None
            identities.append(IdentityFile(path=path, file=file, properties=properties))
    return identities


def _write(disk: Disk, directories: tuple[str, ...], node_id: int, cluster_id: str | None) -> None:
    """Each file appears whole or not at all; a start that was interrupted finds its id in the first."""
    rng = random.SystemRandom()
    for directory in directories:
        _set_aside(disk, directory)
        identity = MetaProperties(cluster_id=cluster_id, node_id=node_id, directory_id=random_uuid(rng))
        store_meta_properties(disk, directory, identity)
        _log.info("formatted %s for broker %d of cluster %s", directory, node_id, cluster_id)


def _set_aside(disk: Disk, directory: str) -> None:
    """A metadata log of unknown owner may be another cluster's: the log is fetched again."""
    log = Path(directory) / METADATA_DIRECTORY
    if not log.exists():
        return
    aside, number = Path(f"{log}{ASIDE}"), 1
    while aside.exists():
        number += 1
        aside = Path(f"{log}{ASIDE}-{number}")
    log.rename(aside)
    disk.sync_directory(directory)
    _log.warning(
        "%s did not belong to a broker (it has no %s): it is set aside as %s", log, FILE_NAME, aside.name
    )


# Which broker this is, according to its configuration and its own directories (S0.1 to S0.4, S0.27).


class IdentityConflict(Exception):
    """The configuration and the directories disagree on which broker this is; one line for humans."""


class IdentityFile(msgspec.Struct, frozen=True, kw_only=True):
    """One directory of the broker. `file` is the path of its meta.properties, which may not exist;
    `properties` is None if it does not."""

    path: str
    file: str
    properties: MetaProperties | None


class KnownIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """What is known without a request. `node_id` None: the controllers assign it; `cluster_id` None: they
    report it. `unwritten`: directories without a meta.properties, in the order given. `is_blank`: no
    directory has one."""

    node_id: int | None
    cluster_id: str | None
    unwritten: tuple[str, ...]
    is_blank: bool


def known_identity(explicit_id: int | None, directories: Sequence[IdentityFile]) -> KnownIdentity:
    """The explicit id and that of the files, which must agree; raises IdentityConflict if they do not.

    Any directory that survived identifies the broker, whatever happened to the others (S0.27).
    """
    node_id, cluster_id = explicit_id, None
    id_from: IdentityFile | None = None
    cluster_from: IdentityFile | None = None
    for directory in directories:
        properties = directory.properties
        if properties is None:
            continue
        if properties.node_id is not None:
            if id_from is not None and properties.node_id != node_id:
                raise IdentityConflict(
                    f"{id_from.file} says that this broker is {node_id}, but {directory.file} says "
                    f"{properties.node_id}: one of them belongs to another broker; correct log.dirs"
                )
            if id_from is None and explicit_id is not None and properties.node_id != explicit_id:
                raise IdentityConflict(
                    f"node.id is {explicit_id}, but {directory.file} says {properties.node_id}: correct or "
                    "remove node.id, or set log.dirs to this broker's own directories"
                )
            node_id, id_from = properties.node_id, directory
        if properties.cluster_id is not None:
            if cluster_from is not None and properties.cluster_id != cluster_id:
                raise IdentityConflict(
                    f"{cluster_from.file} belongs to cluster {cluster_id}, but {directory.file} to "
                    f"{properties.cluster_id}: use directories of one cluster"
                )
            cluster_id, cluster_from = properties.cluster_id, directory
    unwritten = tuple(directory.path for directory in directories if directory.properties is None)
    return KnownIdentity(
        node_id=node_id,
        cluster_id=cluster_id,
        unwritten=unwritten,
        is_blank=len(unwritten) == len(directories),
    )
