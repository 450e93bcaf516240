"""Queries controllers about themselves: each given address, all at once.

Unlike the admin client, does not follow leader hints and does not retry.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import grpc.aio
import msgspec

from metaquorum.clients.search import Address
from metaquorum.network.tls import TlsMaterial
from metaquorum.proto import admin_pb2 as admin
from metaquorum.proto.admin_pb2_grpc import AdminStub
from metaquorum.rpc.channels import open_channel
from metaquorum.rpc.messages.node import NODE, NodeReport
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
