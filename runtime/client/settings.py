"""What the admin client can say about settings: functions on an `AdminClient`, one for each call.

Owns the shape of the calls; who is asked, and how often, is the client's. Values as in `metadata`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from metaquorum.metadata.image import Acl
from metaquorum.metadata.requests import settings as api
from metaquorum.metadata.settings.acls import AclFilter
from metaquorum.metadata.settings.scram import SALT_BYTES, Mechanism, salted_password
from metaquorum.proto.settings_pb2_grpc import SettingsStub
from metaquorum.runtime.api import settings as codec
from metaquorum.runtime.client.admin import AdminClient


class SettingsClient:
    """Changes of settings through `admin`. Raises as its calls do; results distinguish refusals."""

    def __init__(self, admin: AdminClient) -> None:
        self._admin = admin

    async def alter_configs(
        self, changes: Sequence[api.ConfigChange], *, validate_only: bool = False
    ) -> tuple[api.SettingResult, ...]:
        request = api.AlterConfigsRequest(changes=tuple(changes), validate_only=validate_only)
        return await self._results(lambda stub: stub.AlterConfigs, codec.ALTER_CONFIGS.to_pb(request))

    async def update_features(
        self, updates: Sequence[api.FeatureUpdate], *, validate_only: bool = False
    ) -> tuple[api.SettingResult, ...]:
        request = api.UpdateFeaturesRequest(updates=tuple(updates), validate_only=validate_only)
        return await self._results(lambda stub: stub.UpdateFeatures, codec.UPDATE_FEATURES.to_pb(request))

    async def create_acls(self, acls: Sequence[Acl]) -> tuple[api.SettingResult, ...]:
        request = api.CreateAclsRequest(acls=tuple(acls))
        return await self._results(lambda stub: stub.CreateAcls, codec.CREATE_ACLS.to_pb(request))

    async def delete_acls(
        self, filters: Sequence[AclFilter], *, validate_only: bool = False
    ) -> tuple[api.DeletedAcls, ...]:
        request = api.DeleteAclsRequest(filters=tuple(filters), validate_only=validate_only)
        answer = await self._change(lambda stub: stub.DeleteAcls, codec.DELETE_ACLS.to_pb(request))
        return codec.DELETED_ACLS.from_pb(answer).results

    async def set_scram(
        self, user: str, mechanism: Mechanism, password: str, *, iterations: int, salt: bytes | None = None
    ) -> api.SettingResult:
        """The password stays in this process; without `salt` one is drawn from the system's randomness."""
        salt = random.SystemRandom().randbytes(SALT_BYTES) if salt is None else salt
        upsertion = api.ScramUpsertion(
            user=user,
            mechanism=mechanism,
            iterations=iterations,
            salt=salt,
            salted_password=salted_password(mechanism, password, salt, max(1, iterations)),
        )
        request = codec.ALTER_SCRAM.to_pb(api.AlterScramRequest(upsertions=(upsertion,)))
        return (await self._results(lambda stub: stub.AlterScram, request))[0]

    async def delete_scram(self, user: str, mechanism: Mechanism) -> api.SettingResult:
        deletion = api.ScramDeletion(user=user, mechanism=mechanism)
        request = codec.ALTER_SCRAM.to_pb(api.AlterScramRequest(deletions=(deletion,)))
        return (await self._results(lambda stub: stub.AlterScram, request))[0]

    async def alter_quotas(
        self, changes: Sequence[api.QuotaChange], *, validate_only: bool = False
    ) -> tuple[api.SettingResult, ...]:
        request = api.AlterQuotasRequest(changes=tuple(changes), validate_only=validate_only)
        return await self._results(lambda stub: stub.AlterQuotas, codec.ALTER_QUOTAS.to_pb(request))

    async def create_token(self, request: api.CreateTokenRequest) -> api.CreateTokenResponse:
        answer = await self._change(lambda stub: stub.CreateToken, codec.CREATE_TOKEN.to_pb(request))
        return codec.CREATED_TOKEN.from_pb(answer)

    async def renew_token(self, request: api.RenewTokenRequest) -> api.TokenExpiryResponse:
        answer = await self._change(lambda stub: stub.RenewToken, codec.RENEW_TOKEN.to_pb(request))
        return codec.TOKEN_EXPIRY.from_pb(answer)

    async def expire_token(self, request: api.ExpireTokenRequest) -> api.TokenExpiryResponse:
        answer = await self._change(lambda stub: stub.ExpireToken, codec.EXPIRE_TOKEN.to_pb(request))
        return codec.TOKEN_EXPIRY.from_pb(answer)

    async def allocate_producer_ids(
        self, broker_id: int, broker_epoch: int
    ) -> api.AllocateProducerIdsResponse:
        request = api.AllocateProducerIdsRequest(broker_id=broker_id, broker_epoch=broker_epoch)
        message = codec.ALLOCATE_PRODUCER_IDS.to_pb(request)
        answer = await self._change(lambda stub: stub.AllocateProducerIds, message)
        return codec.ALLOCATED_PRODUCER_IDS.from_pb(answer)

    async def register_controller(self, request: api.RegisterControllerRequest) -> None:
        message = codec.REGISTER_CONTROLLER.to_pb(request)
        await self._change(lambda stub: stub.RegisterController, message)

    async def _results(self, method: Callable[[Any], Any], request: Any) -> tuple[api.SettingResult, ...]:
        return codec.RESULTS.from_pb(await self._change(method, request)).results

    async def _change(self, method: Callable[[Any], Any], request: Any) -> Any:
        return await self._admin.ask(lambda channel: method(SettingsStub(channel)), request)
