"""Asks brokers about themselves, each address for itself, and carries their answers to and from protobuf.

Owns that one silent broker hides no other. Follows no hints and asks once, like `runtime.client.nodes`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import grpc.aio

from metaquorum.broker.lifecycle import BrokerState, ProcessState
from metaquorum.broker.status import BrokerStatus
from metaquorum.proto import broker_pb2 as pb
from metaquorum.proto.broker_pb2_grpc import BrokerSelfStub
from metaquorum.runtime.client.admin import Address
from metaquorum.runtime.rpc.channels import TlsMaterial, open_channel
from metaquorum.runtime.rpc.reach import UNREADABLE, Reasons


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerAnswer:
    """What one address said: `status` and its cluster, or None and the reason in `problem`."""

    address: Address
    status: BrokerStatus | None = None
    cluster_id: str = ""
    problem: str = ""


async def describe_broker_nodes(
    addresses: Sequence[Address], *, timeout_ms: int, tls: TlsMaterial | None = None
) -> tuple[BrokerAnswer, ...]:
    """One answer for each address, in their order, after `timeout_ms` at the latest."""
    return tuple(await asyncio.gather(*(_describe(each, timeout_ms, tls) for each in addresses)))


async def _describe(address: Address, timeout_ms: int, tls: TlsMaterial | None) -> BrokerAnswer:
    channel = open_channel(*address, tls)
    try:
        stub = BrokerSelfStub(channel)
        answer = await stub.DescribeBroker(pb.DescribeBrokerRequest(), timeout=timeout_ms / 1000)
        if answer is None:  # so gRPC hands on what it cannot decode
            return BrokerAnswer(address=address, problem=UNREADABLE)
        return BrokerAnswer(address=address, status=status_from_pb(answer), cluster_id=answer.cluster_id)
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


def status_to_pb(status: BrokerStatus, cluster_id: str) -> pb.DescribeBrokerResponse:
    return pb.DescribeBrokerResponse(
        node_id=status.node_id,
        cluster_id=cluster_id,
        incarnation_id=status.incarnation_id,
        state=status.state.value,
        process_state=status.process_state.value,
        fenced=status.fenced,
        broker_epoch=status.broker_epoch,
        lease_left_ms=status.lease_left_ms,
        applied_offset=status.applied_offset,
        high_watermark=status.high_watermark,
        log_end_offset=status.log_end_offset,
        catch_up_offset=status.catch_up_offset,
        leader_id=status.leader_id,
        quorum_epoch=status.quorum_epoch,
        failures=status.failures,
        last_problem=status.last_problem,
    )


def status_from_pb(answer: pb.DescribeBrokerResponse) -> BrokerStatus:
    """Raises ValueError for a state that this release does not know."""
    return BrokerStatus(
        node_id=answer.node_id,
        incarnation_id=answer.incarnation_id,
        state=BrokerState(answer.state),
        process_state=ProcessState(answer.process_state),
        fenced=answer.fenced,
        broker_epoch=answer.broker_epoch if answer.HasField("broker_epoch") else None,
        lease_left_ms=answer.lease_left_ms if answer.HasField("lease_left_ms") else None,
        applied_offset=answer.applied_offset,
        high_watermark=answer.high_watermark,
        log_end_offset=answer.log_end_offset,
        catch_up_offset=answer.catch_up_offset if answer.HasField("catch_up_offset") else None,
        leader_id=answer.leader_id if answer.HasField("leader_id") else None,
        quorum_epoch=answer.quorum_epoch,
        failures=answer.failures,
        last_problem=answer.last_problem,
    )
