"""Queries controllers about themselves: each given address, all at once.

Owns that an unresponsive controller does not hide the others. Unlike the admin client, does not follow leader
hints and does not retry.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import grpc.aio
import msgspec

from metaquorum.proto import admin_pb2 as admin
from metaquorum.proto.admin_pb2_grpc import AdminStub
from metaquorum.runtime.api.node import NODE, NodeReport
from metaquorum.runtime.client.admin import Address
from metaquorum.runtime.rpc.channels import open_channel
from metaquorum.runtime.rpc.reach import UNREADABLE, Reasons
from metaquorum.runtime.tls.material import TlsMaterial


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
