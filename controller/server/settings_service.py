"""The gRPC service for what an operator sets, on a controller: every call is a request to the active one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from metaquorum.controller.server.services import ask
from metaquorum.controller.server.voter_changes import VoterChanges
from metaquorum.metadata.errors import ApiError
from metaquorum.metadata.features import KRAFT_VERSION
from metaquorum.metadata.requests import common as base
from metaquorum.metadata.requests import settings as api
from metaquorum.proto import metadata_pb2 as common
from metaquorum.proto import settings_pb2 as pb
from metaquorum.proto.settings_pb2_grpc import SettingsServicer
from metaquorum.runtime.api import settings as codec
from metaquorum.runtime.api.errors import Hints, error_to_pb
from metaquorum.runtime.requests import WaitingRequests

Pb = TypeVar("Pb")


class SettingsService(SettingsServicer):
    """See the module. What is refused is the response's `error` field."""

    def __init__(self, requests: WaitingRequests, hints: Hints, voter_changes: VoterChanges) -> None:
        self._requests = requests
        self._hints = hints
        self._voter_changes = voter_changes

    async def AlterConfigs(self, request: pb.AlterConfigsRequest, context: Any) -> pb.SettingsResponse:
        return await self._results(lambda: codec.ALTER_CONFIGS.from_pb(request))

    async def UpdateFeatures(self, request: pb.UpdateFeaturesRequest, context: Any) -> pb.SettingsResponse:
        try:
            decoded = codec.UPDATE_FEATURES.from_pb(request)
        except ApiError as error:
            return pb.SettingsResponse(error=self._error(error))
        if [update.name for update in decoded.updates] == [KRAFT_VERSION]:
            return codec.RESULTS.answer_to_pb(await self._voter_changes.upgrade(decoded), self._hints)
        return await self._results(lambda: decoded)

    async def CreateAcls(self, request: pb.CreateAclsRequest, context: Any) -> pb.SettingsResponse:
        return await self._results(lambda: codec.CREATE_ACLS.from_pb(request))

    async def AlterScram(self, request: pb.AlterScramRequest, context: Any) -> pb.SettingsResponse:
        return await self._results(lambda: codec.ALTER_SCRAM.from_pb(request))

    async def AlterQuotas(self, request: pb.AlterQuotasRequest, context: Any) -> pb.SettingsResponse:
        return await self._results(lambda: codec.ALTER_QUOTAS.from_pb(request))

    async def _results(self, decode: Callable[[], api.SettingsRequest]) -> pb.SettingsResponse:
        try:
            request = decode()
        except ApiError as error:
            return pb.SettingsResponse(error=self._error(error))
        response = await ask(self._requests, request, api.SettingsResponse)
        return codec.RESULTS.answer_to_pb(response, self._hints)

    async def DeleteAcls(self, request: pb.DeleteAclsRequest, context: Any) -> pb.DeleteAclsResponse:
        response = await ask(self._requests, codec.DELETE_ACLS.from_pb(request), api.DeleteAclsResponse)
        return codec.DELETED_ACLS.answer_to_pb(response, self._hints)

    async def CreateToken(self, request: pb.CreateTokenRequest, context: Any) -> pb.CreateTokenResponse:
        response = await ask(self._requests, codec.CREATE_TOKEN.from_pb(request), api.CreateTokenResponse)
        return codec.CREATED_TOKEN.answer_to_pb(response, self._hints)

    async def RenewToken(self, request: pb.TokenChangeRequest, context: Any) -> pb.TokenExpiryResponse:
        return await self._expiry(codec.RENEW_TOKEN.from_pb(request))

    async def ExpireToken(self, request: pb.TokenChangeRequest, context: Any) -> pb.TokenExpiryResponse:
        return await self._expiry(codec.EXPIRE_TOKEN.from_pb(request))

    async def _expiry(
        self, request: api.RenewTokenRequest | api.ExpireTokenRequest
    ) -> pb.TokenExpiryResponse:
        response = await ask(self._requests, request, api.TokenExpiryResponse)
        return codec.TOKEN_EXPIRY.answer_to_pb(response, self._hints)

    async def AllocateProducerIds(
        self, request: pb.AllocateProducerIdsRequest, context: Any
    ) -> pb.AllocateProducerIdsResponse:
        decoded = codec.ALLOCATE_PRODUCER_IDS.from_pb(request)
        response = await ask(self._requests, decoded, api.AllocateProducerIdsResponse)
        return codec.ALLOCATED_PRODUCER_IDS.answer_to_pb(response, self._hints)

    async def RegisterController(
        self, request: pb.RegisterControllerRequest, context: Any
    ) -> pb.RegisterControllerResponse:
        decoded = codec.REGISTER_CONTROLLER.from_pb(request)
        response = await ask(self._requests, decoded, base.Done)
        failed = self._error(response) if isinstance(response, ApiError) else None
        return pb.RegisterControllerResponse(error=failed)

    def _error(self, error: ApiError) -> common.Error:
        return error_to_pb(error, self._hints)
