"""Queries controllers about themselves: each given address, all at once.

Unlike the admin client, does not follow leader hints and does not retry.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import grpc.aio
import msgspec

from metaquorum.clients.search import Address, ClientError
from metaquorum.metadata.errors import ApiError
from metaquorum.metadata.requests.data import MarkLogDirOfflineRequest, MarkLogDirOfflineResponse
from metaquorum.metadata.requests.status import BrokerStatus
from metaquorum.network.tls import TlsMaterial
from metaquorum.proto import admin_pb2 as admin
from metaquorum.proto import broker_pb2 as pb
from metaquorum.proto.admin_pb2_grpc import AdminStub
from metaquorum.proto.broker_pb2_grpc import BrokerSelfStub
from metaquorum.rpc.channels import open_channel
from metaquorum.rpc.messages.tables import (
    BROKER_STATUS,
    MARK_LOG_DIR_OFFLINE,
    MARKED_LOG_DIR,
    NODE,
    NodeReport,
)
from metaquorum.rpc.reach import UNREADABLE, Reasons


class NodeAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The result for one address: `report`, or None and the reason in `problem`."""

    address: Address
    report: NodeReport | None = None
    problem: str = ""


async def describe_nodes(
    addresses: Sequence[Address], *, timeout_ms: int, tls: TlsMaterial | None = None
) -> tuple[NodeAnswer, ...]:
    """One result per address, in their order, after at most `timeout_ms`."""
    return tuple(await asyncio.gather(*(_describe(each, timeout_ms, tls) for each in addresses)))


async def _describe(address: Address, timeout_ms: int, tls: TlsMaterial | None) -> NodeAnswer:
    channel = open_channel(*address, tls)
    try:
        answer = await AdminStub(channel).DescribeNode(admin.DescribeNodeRequest(), timeout=timeout_ms / 1000)
        if answer is None:  # gRPC returns None for what it cannot decode
            return NodeAnswer(address=address, problem=UNREADABLE)
        return NodeAnswer(address=address, report=NODE.from_pb(answer))
    except grpc.aio.AioRpcError as error:
        return NodeAnswer(address=address, problem=await Reasons(tls).of(error, address))
    except ValueError as error:
        return NodeAnswer(address=address, problem=f"its answer comes from a newer release ({error})")
    finally:
        await channel.close(None)


# Queries brokers about themselves, each at its own address, and requests that one takes a log directory
# offline.


class BrokerAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The result for one address: `status` and its cluster, or None and the reason in `problem`."""

    address: Address
    status: BrokerStatus | None = None
    cluster_id: str = ""
    problem: str = ""


async def describe_broker_nodes(
    addresses: Sequence[Address], *, timeout_ms: int, tls: TlsMaterial | None = None
) -> tuple[BrokerAnswer, ...]:
    """One result per address, in their order, after at most `timeout_ms`."""
    return tuple(await asyncio.gather(*(_describe_broker(each, timeout_ms, tls) for each in addresses)))


async def _describe_broker(address: Address, timeout_ms: int, tls: TlsMaterial | None) -> BrokerAnswer:
    channel = open_channel(*address, tls)
    try:
        stub = BrokerSelfStub(channel)
        answer = await stub.DescribeBroker(pb.DescribeBrokerRequest(), timeout=timeout_ms / 1000)
        if answer is None:  # gRPC returns None for what it cannot decode
            return BrokerAnswer(address=address, problem=UNREADABLE)
        return BrokerAnswer(
            address=address, status=BROKER_STATUS.from_pb(answer), cluster_id=answer.cluster_id
        )
    except grpc.aio.AioRpcError as error:
        if error.code() is grpc.StatusCode.UNIMPLEMENTED:
            return BrokerAnswer(
                address=address, problem="it does not serve this request; give a broker's address"
            )
        return BrokerAnswer(address=address, problem=await Reasons(tls).of(error, address))
    except ValueError as error:
        return BrokerAnswer(address=address, problem=f"its answer comes from a newer release ({error})")
    finally:
        await channel.close(None)


async def mark_log_dir_offline(
    address: Address, request: MarkLogDirOfflineRequest, *, timeout_ms: int, tls: TlsMaterial | None = None
) -> MarkLogDirOfflineResponse:
    """Marks a log directory offline. Raises ApiError if the broker refuses, and ClientError if it does not
    respond: whether it did it is unknown."""
    channel = open_channel(*address, tls)
    try:
        method = BrokerSelfStub(channel).MarkLogDirOffline
        answer = await method(MARK_LOG_DIR_OFFLINE.to_pb(request), timeout=timeout_ms / 1000)
    except grpc.aio.AioRpcError as error:
        raise ClientError(await Reasons(tls).of(error, address)) from error
    finally:
        await channel.close(None)
    if answer is None:
        raise ClientError(UNREADABLE)
    marked = MARKED_LOG_DIR.answer_from_pb(answer)
    if isinstance(marked, ApiError):
        raise marked
    return marked
