"""Voter changes that operators and joining controllers request, before Raft decides (KIP-853).

A new voter must answer at its stated endpoint, as the stated node, directory and cluster. Kafka checks only
its versions.
"""

from __future__ import annotations

from typing import Any, Protocol

from msgspec.structs import replace

from metaquorum.controller.answers import not_controller
from metaquorum.controller.server.services import ask
from metaquorum.controller.voters import upgrade_request
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.records.control import KRaftVersionFeature, Voter
from metaquorum.metadata.requests.common import (
    AddRaftVoterRequest,
    Done,
    RaftVoterRequest,
    ReadImageRequest,
    ReadImageResponse,
    UpgradeKRaftVersionRequest,
)
from metaquorum.metadata.requests.settings import SettingResult, SettingsResponse, UpdateFeaturesRequest
from metaquorum.metadata.text.addresses import address_text
from metaquorum.proto import metadata_pb2 as common
from metaquorum.proto import voters_pb2 as pb
from metaquorum.proto.voters_pb2_grpc import VotersServicer
from metaquorum.raft.core import RaftCore
from metaquorum.rpc.messages import tables as codec
from metaquorum.rpc.messages.errors import Hints, error_to_pb
from metaquorum.rpc.requests import WaitingRequests

PROBE_TIMEOUT_MS = 3_000
"""How long a new voter may take to identify itself; less if the caller waits less."""


class VoterProbe(Protocol):
    """Asks a new voter who it is."""

    async def ask(
        self, voter: Voter, addresses: list[tuple[str, int]], timeout_ms: int
    ) -> KRaftVersionFeature | ApiError:
        """The versions that it reports at these addresses; or why it is not the named voter."""


class VoterChanges:
    """Services call `change`. `raft` is read between two of its inputs. `listener`: the name of the
    controllers' listener on which voters ask each other, at which `probe` asks a new one; it is asked
    everywhere if it has none of that name."""

    def __init__(
        self,
        requests: WaitingRequests,
        raft: RaftCore,
        cluster_id: str,
        probe: VoterProbe,
        listener: str = "",
    ) -> None:
        self._listener = listener.upper()
        self._requests = requests
        self._raft = raft
        self._cluster_id = cluster_id
        self._new_voter = probe

    async def change(self, request: RaftVoterRequest) -> Done | ApiError:
        """Done when it is committed, or why it is not. Only the leader of the quorum changes voters; any
        other node answers NOT_CONTROLLER with the leader's id."""
        if isinstance(request, AddRaftVoterRequest):
            addition = self._why_not_here(request) or await self._probe(request)
            if isinstance(addition, ApiError):
                return addition
            if request.validate_only:
                return _too_old(addition.voter, self._raft.kraft_version) or Done()
            request = addition
        return await ask(self._requests, request, Done)

    async def upgrade(self, request: UpdateFeaturesRequest) -> SettingsResponse | ApiError:
        """The only update in `request`, which is kraft.version's."""
        (update,) = request.updates
        image = await ask(self._requests, ReadImageRequest(linearizable=False), ReadImageResponse)
        if isinstance(image, ApiError):
            return image
        upgrade = upgrade_request(update.level, image.image, self._raft)
        answer: Done | ApiError = upgrade if isinstance(upgrade, ApiError) else Done()
        is_upgrade = update.level > self._raft.kraft_version
        if isinstance(upgrade, UpgradeKRaftVersionRequest) and not (request.validate_only and is_upgrade):
            answer = await ask(self._requests, upgrade, Done)
        if isinstance(answer, ApiError):
            if answer.code is not ErrorCode.INVALID_UPDATE_VERSION:
                return answer
            text = f"{update.name} cannot become {update.level}: {answer.message}"
            return SettingsResponse(
                results=(SettingResult(subject=update.name, error=answer.code, message=text),)
            )
        return SettingsResponse(results=(SettingResult(subject=update.name),))

    def _why_not_here(self, request: AddRaftVoterRequest) -> ApiError | None:
        """Refusals that Raft would give as well, before the new node is probed in vain."""
        raft = self._raft
        if request.cluster_id not in (None, self._cluster_id):
            text = f"this is cluster {self._cluster_id}, not {request.cluster_id}: connect to that cluster"
            return ApiError(ErrorCode.INCONSISTENT_CLUSTER_ID, text)
        if not raft.is_leader:
            return not_controller(raft.node_id, raft.leader_id)
        if raft.kraft_version == 0:
            text = "voters are configured while kraft.version is 0: upgrade kraft.version to 1 first"
            return ApiError(ErrorCode.UNSUPPORTED_VERSION, text)
        return None

    async def _probe(self, request: AddRaftVoterRequest) -> AddRaftVoterRequest | ApiError:
        """The request with the versions that the new voter reports; or why it is refused."""
        voter = request.voter
        if not voter.endpoints:
            return ApiError(ErrorCode.INVALID_REQUEST, f"voter {voter.voter_id} needs an endpoint")
        named = [each for each in voter.endpoints if each.name.upper() == self._listener]
        addresses = [(each.host, each.port) for each in named or voter.endpoints]
        timeout_ms = max(1, min(PROBE_TIMEOUT_MS, request.timeout_ms))
        versions = await self._new_voter.ask(voter, addresses, timeout_ms)
        if isinstance(versions, ApiError):
            return versions
        known = Voter(voter.voter_id, voter.voter_directory_id, voter.endpoints, versions)
        return replace(request, voter=known)


def no_answer(voter: Voter, address: tuple[str, int], problem: object) -> ApiError:
    """The refusal of a voter that cannot be asked."""
    where = address_text(*address)
    return ApiError(
        ErrorCode.REQUEST_TIMED_OUT,
        f"voter {voter.voter_id} does not answer at {where} ({problem}): start it, or correct its address",
    )


def _too_old(voter: Voter, kraft_version: int) -> ApiError | None:
    """Why the node does not support the quorum's level."""
    supported = voter.kraft_version_feature
    if supported.min_supported_version <= kraft_version <= supported.max_supported_version:
        return None
    return ApiError(
        ErrorCode.INVALID_REQUEST,
        f"node {voter.voter_id} supports kraft.version {supported.min_supported_version} to"
        f" {supported.max_supported_version} and this quorum is at {kraft_version}: install a release there"
        " that supports it",
    )


class VotersService(VotersServicer):
    """The gRPC service that changes the quorum's voters (KIP-853)."""

    def __init__(self, changes: VoterChanges, hints: Hints) -> None:
        self._changes = changes
        self._hints = hints

    async def Add(self, request: pb.AddRaftVoterRequest, context: Any) -> pb.ChangedVoters:
        try:
            return await self._change(codec.ADD_VOTER.from_pb(request))
        except ApiError as error:
            return pb.ChangedVoters(error=self._error(error))

    async def Remove(self, request: pb.RemoveRaftVoterRequest, context: Any) -> pb.ChangedVoters:
        try:
            return await self._change(codec.REMOVE_VOTER.from_pb(request))
        except ApiError as error:
            return pb.ChangedVoters(error=self._error(error))

    async def _change(self, request: RaftVoterRequest) -> pb.ChangedVoters:
        return pb.ChangedVoters(error=self._error(await self._changes.change(request)))

    def _error(self, answer: Done | ApiError) -> common.Error | None:
        return error_to_pb(answer, self._hints) if isinstance(answer, ApiError) else None
