"""gRPC calls: large messages of a certificate without rights, and Raft requests that would end the epochs."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc

from metaquorum.clients.kafka.raft_messages import request_body
from metaquorum.config.security import TlsFiles
from metaquorum.network.tls import TlsMaterial
from metaquorum.proto import (
    admin_pb2,
    broker_ids_pb2,
    broker_pb2,
    forwarding_pb2,
    metadata_pb2,
    partitions_pb2,
    voters_pb2,
)
from metaquorum.raft import messages as raft
from metaquorum.raft.voters import PreferredCandidate
from metaquorum.storage.types import LogPosition
from metaquorum.wire.messages import DescribeQuorumRequest, MetadataRequest
from tests.attacks.attack import attack
from tests.attacks.site import Target
from tests.attacks.speaker import GONE, Speaker

CALL_S = 10.0
MESSAGE_MAX = 60 << 20
METADATA_TOPIC = "__cluster_metadata"
EPOCHS = (2**31 - 1, 2**31 - 2, 2**31 - 1_000, 2**31 - 2**20 + 1, 2**30 + 100_000)
"""Epochs that no election comes to."""
VERSIONS = {raft.VoteRequest: 2, raft.BeginQuorumEpochRequest: 1, raft.EndQuorumEpochRequest: 1}
_FILES = (
    admin_pb2,
    broker_ids_pb2,
    broker_pb2,
    forwarding_pb2,
    metadata_pb2,
    partitions_pb2,
    voters_pb2,
)
METHODS = tuple(
    f"/{service.full_name}/{method.name}"
    for file in _FILES
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
)


@contextmanager
def _channel(target: Target, port: str, certificate: str) -> Iterator[grpc.Channel]:
    folder = Path(target.folder)
    files = TlsFiles(keystore=folder / f"{certificate}.pem", truststore=folder / "authority.crt")
    host, number = target.address(port)
    options = (("grpc.max_send_message_length", -1), ("grpc.enable_http_proxy", 0))
    credentials = TlsMaterial.load(files).channel_credentials()
    with grpc.secure_channel(f"{host}:{number}", credentials, options=options) as channel:
        yield channel


def _large(port: str) -> None:
    @attack(f"large-{port}", port=port)
    def large(rng: random.Random, target: Target) -> None:
        """Messages of up to 60 MiB to every kind of method, by a certificate without rights."""
        # Millions of empty structures in the first field, a long value in it, or no message at all.
        message = rng.choice((b"\x0a\x00", b"\x0a\x7f" + bytes(127), b"\xff\xff"))
        message *= rng.choice((1 << 20, 20 << 20, MESSAGE_MAX)) // len(message)
        methods = [rng.choice(METHODS) for _ in range(rng.randint(5, 20))]

        def call(method: str) -> None:
            with _channel(target, port, rng.choice(("other", "other", "stranger"))) as channel:
                with suppress(grpc.RpcError):
                    channel.unary_unary(method, None, None)(message, timeout=CALL_S)

        with ThreadPoolExecutor(rng.choice((1, 4))) as threads:
            list(threads.map(call, methods))


for _port in ("broker-grpc", "controller-grpc"):
    _large(_port)


@attack("epochs", port="quorum")
def epochs(rng: random.Random, target: Target) -> None:
    """Raft requests near the end of the epochs, with a node's certificate and all that names the voter."""
    with Speaker(target, "alice") as alice:
        cluster_id = alice.ask(MetadataRequest(topics=()), 9).cluster_id
        topic: Any = DescribeQuorumRequest.TopicData
        part: Any = DescribeQuorumRequest.PartitionData
        asked = topic(topic_name=METADATA_TOPIC, partitions=(part(partition_index=0),))
        quorum = alice.ask(DescribeQuorumRequest(topics=(asked,)), 2)
    (described,) = quorum.topics[0].partitions
    (voter,) = described.current_voters
    common = {"cluster_id": cluster_id, "voter_id": voter.replica_id}
    directory = rng.choice((voter.replica_directory_id, bytes(16)))
    candidate = rng.choice((voter.replica_id, 77_777))

    def request() -> raft.RaftRequest:
        epoch = rng.choice(EPOCHS)
        match rng.randrange(3):
            case 0:
                return raft.VoteRequest(
                    **common,
                    epoch=epoch,
                    candidate_id=candidate,
                    candidate_directory_id=rng.choice((directory, bytes([7]) * 16)),
                    voter_directory_id=directory,
                    last_position=LogPosition(rng.choice((0, epoch)), rng.choice((0, 2**62))),
                    pre_vote=rng.random() < 0.3,
                    kraft_version=rng.choice((0, 1)),
                )
            case 1:
                return raft.BeginQuorumEpochRequest(
                    **common, epoch=epoch, leader_id=candidate, voter_directory_id=directory
                )
            case _:
                successor = PreferredCandidate(voter.replica_id, directory)
                return raft.EndQuorumEpochRequest(
                    cluster_id=cluster_id,
                    epoch=epoch,
                    leader_id=candidate,
                    preferred_candidates=(successor,) * rng.randrange(3),
                )

    with suppress(*GONE), Speaker(target, "voter") as node:
        for _ in range(rng.randint(2, 200)):
            sent = request()
            version = VERSIONS[type(sent)]
            node.ask(request_body(sent, version), version)
