"""The gRPC service for what an operator sets, on a controller: every call is a request to the active one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from metaquorum.controller.server.services import ask
from metaquorum.metadata.errors import ApiError
from metaquorum.metadata.requests import common as base
from metaquorum.metadata.requests import settings as api
from metaquorum.proto import metadata_pb2 as common
from metaquorum.proto import settings_pb2 as pb
from metaquorum.proto.settings_pb2_grpc import SettingsServicer
from metaquorum.runtime.api import settings as codec
from metaquorum.runtime.api.api import Hints, error_to_pb
from metaquorum.runtime.requests import WaitingRequests

Pb = TypeVar("Pb")


class SettingsService(SettingsServicer):
    """See the module. What is refused is the response's `error` field."""

    def __init__(self, requests: WaitingRequests, hints: Hints) -> None:
        self._requests = requests
        self._hints = hints

    async def AlterConfigs(self, request: pb.AlterConfigsRequest, context: Any) -> pb.SettingsResponse:
        return await self._results(lambda: codec.alter_configs_from_pb(request))

    async def UpdateFeatures(self, request: pb.UpdateFeaturesRequest, context: Any) -> pb.SettingsResponse:
        return await self._results(lambda: codec.update_features_from_pb(request))

    async def CreateAcls(self, request: pb.CreateAclsRequest, context: Any) -> pb.SettingsResponse:
        return await self._results(lambda: codec.create_acls_from_pb(request))

    async def AlterScram(self, request: pb.AlterScramRequest, context: Any) -> pb.SettingsResponse:
        return await self._results(lambda: codec.alter_scram_from_pb(request))

    async def AlterQuotas(self, request: pb.AlterQuotasRequest, context: Any) -> pb.SettingsResponse:
        return await self._results(lambda: codec.alter_quotas_from_pb(request))

    async def _results(self, decode: Callable[[], api.SettingsRequest]) -> pb.SettingsResponse:
        try:
            request = decode()
        except ApiError as error:
            return pb.SettingsResponse(error=self._error(error))
        response = await ask(self._requests, request, api.SettingsResponse)
        if isinstance(response, ApiError):
            return pb.SettingsResponse(error=self._error(response))
        return codec.results_to_pb(response, self._hints)

    async def DeleteAcls(self, request: pb.DeleteAclsRequest, context: Any) -> pb.DeleteAclsResponse:
        response = await ask(self._requests, codec.delete_acls_from_pb(request), api.DeleteAclsResponse)
        if isinstance(response, ApiError):
            return pb.DeleteAclsResponse(error=self._error(response))
        return codec.deleted_acls_to_pb(response, self._hints)

    async def CreateToken(self, request: pb.CreateTokenRequest, context: Any) -> pb.CreateTokenResponse:
        response = await ask(self._requests, codec.create_token_from_pb(request), api.CreateTokenResponse)
        if isinstance(response, ApiError):
            return pb.CreateTokenResponse(error=self._error(response))
        return codec.created_token_to_pb(response)

    async def RenewToken(self, request: pb.TokenChangeRequest, context: Any) -> pb.TokenExpiryResponse:
        return await self._expiry(codec.renew_token_from_pb(request))

    async def ExpireToken(self, request: pb.TokenChangeRequest, context: Any) -> pb.TokenExpiryResponse:
        return await self._expiry(codec.expire_token_from_pb(request))

    async def _expiry(
        self, request: api.RenewTokenRequest | api.ExpireTokenRequest
    ) -> pb.TokenExpiryResponse:
        response = await ask(self._requests, request, api.TokenExpiryResponse)
        if isinstance(response, ApiError):
            return pb.TokenExpiryResponse(error=self._error(response))
        return pb.TokenExpiryResponse(expiration_timestamp_ms=response.expiration_timestamp_ms)

    async def AllocateProducerIds(
        self, request: pb.AllocateProducerIdsRequest, context: Any
    ) -> pb.AllocateProducerIdsResponse:
        decoded = api.AllocateProducerIdsRequest(
            broker_id=request.broker_id, broker_epoch=request.broker_epoch
        )
        response = await ask(self._requests, decoded, api.AllocateProducerIdsResponse)
        if isinstance(response, ApiError):
            return pb.AllocateProducerIdsResponse(error=self._error(response))
        return pb.AllocateProducerIdsResponse(first_id=response.first_id, count=response.count)

    async def RegisterController(
        self, request: pb.RegisterControllerRequest, context: Any
    ) -> pb.RegisterControllerResponse:
        decoded = codec.register_controller_from_pb(request)
        response = await ask(self._requests, decoded, base.Done)
        failed = self._error(response) if isinstance(response, ApiError) else None
        return pb.RegisterControllerResponse(error=failed)

    def _error(self, error: ApiError) -> common.Error:
        return error_to_pb(error, self._hints)
