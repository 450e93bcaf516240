"""Asks brokers about their log directories, each for itself: one silent broker hides no other."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from metaquorum.metadata.errors import ApiError
from metaquorum.metadata.requests import data as api
from metaquorum.runtime.client.admin import Address
from metaquorum.runtime.data_client.connections import GrpcConnections, LinkError
from metaquorum.runtime.rpc.channels import TlsMaterial


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerDirectories:
    """What one broker said; `problem` says why it said nothing."""

    broker_id: int
    directories: tuple[api.LogDirDescription, ...] = ()
    problem: str = ""


async def describe_log_dirs(
    brokers: Mapping[int, Address],
    topic_ids: tuple[bytes, ...] | None,
    *,
    timeout_ms: int,
    tls: TlsMaterial | None = None,
) -> tuple[BrokerDirectories, ...]:
    """One answer for each broker, by id. `topic_ids` None: replicas of all topics."""
    connections = GrpcConnections(tls)

    async def ask(broker_id: int, address: Address) -> BrokerDirectories:
        request = api.DescribeLogDirsRequest(topic_ids=topic_ids)
        try:
            answer = await connections.describe_log_dirs(address, request, timeout_ms=timeout_ms)
        except LinkError as error:
            return BrokerDirectories(broker_id=broker_id, problem=str(error))
        if isinstance(answer, ApiError):
            return BrokerDirectories(broker_id=broker_id, problem=str(answer))
        return BrokerDirectories(broker_id=broker_id, directories=answer.directories)

    try:
        return tuple(await asyncio.gather(*(ask(*each) for each in sorted(brokers.items()))))
    finally:
        await connections.close()


async def mark_log_dir_offline(
    address: Address,
    request: api.MarkLogDirOfflineRequest,
    *,
    timeout_ms: int,
    tls: TlsMaterial | None = None,
) -> api.MarkLogDirOfflineResponse:
    """Raises ApiError when the broker refuses, LinkError when it does not answer."""
    connections = GrpcConnections(tls)
    try:
        answer = await connections.mark_log_dir_offline(address, request, timeout_ms=timeout_ms)
    finally:
        await connections.close()
    if isinstance(answer, ApiError):
        raise answer
    return answer
