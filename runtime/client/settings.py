"""What the admin client can say about settings: functions on an `AdminClient`, one for each call.

Owns the shape of the calls; who is asked, and how often, is the client's. Values as in `metadata`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import EllipsisType
from typing import Any

from metaquorum.metadata.errors import ApiError
from metaquorum.metadata.image import Acl, ConfigResource, DelegationToken, QuotaEntity
from metaquorum.metadata.requests import settings as api
from metaquorum.metadata.settings.acls import AclFilter
from metaquorum.metadata.settings.configs import ConfigEntry
from metaquorum.metadata.settings.levels import FeatureDescription
from metaquorum.metadata.settings.quotas import QuotaFilter
from metaquorum.metadata.settings.scram import SALT_BYTES, Mechanism, UserCredentials, salted_password
from metaquorum.proto import metadata_pb2 as common
from metaquorum.proto import settings_pb2 as pb
from metaquorum.proto.settings_pb2_grpc import SettingsStub, SettingsViewStub
from metaquorum.runtime.api import settings as codec
from metaquorum.runtime.api.errors import error_from_pb
from metaquorum.runtime.api.settings import RESOURCES_PER_ANSWER_MAX
from metaquorum.runtime.client.admin import AdminClient

ANONYMOUS = "User:ANONYMOUS"
"""Whom Kafka takes a caller for whom no one authenticated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigDescription:
    """A resource's configuration, or why there is none to show."""

    resource: ConfigResource
    entries: tuple[ConfigEntry, ...] = ()
    error: ApiError | None = None


class SettingsClient:
    """Changes and views of settings through `admin`. Raises as its calls do; results distinguish refusals."""

    def __init__(self, admin: AdminClient) -> None:
        self._admin = admin

    # --- changes

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

    # --- views

    async def describe_configs(
        self, resources: Sequence[ConfigResource], *, all_keys: bool = False, stale: bool = False
    ) -> tuple[ConfigDescription, ...]:
        """In the order asked for. Many resources are asked for in parts, each out of an image of its own."""
        found: list[ConfigDescription] = []
        for first in range(0, len(resources), RESOURCES_PER_ANSWER_MAX):
            part = resources[first : first + RESOURCES_PER_ANSWER_MAX]
            request = pb.DescribeConfigsRequest(
                consistency=_consistency(stale),
                resources=[codec.CONFIG_RESOURCE.to_pb(each) for each in part],
                all_keys=all_keys,
            )
            answer = await self._view(lambda stub: stub.DescribeConfigs, request)
            found += [_description(each) for each in answer.resources]
        return tuple(found)

    async def describe_features(self, *, stale: bool = False) -> tuple[int, tuple[FeatureDescription, ...]]:
        """(the offset up to which it holds, the features)."""
        request = pb.DescribeFeaturesRequest(consistency=_consistency(stale))
        answer = await self._view(lambda stub: stub.DescribeFeatures, request)
        return answer.read.offset, tuple([codec.FEATURE.from_pb(each) for each in answer.features])

    async def list_acls(self, wanted: AclFilter | None = None, *, stale: bool = False) -> tuple[Acl, ...]:
        request = pb.ListAclsRequest(
            consistency=_consistency(stale), filter=codec.ACL_FILTER.to_pb(wanted or AclFilter())
        )
        answer = await self._view(lambda stub: stub.ListAcls, request)
        return tuple([codec.ACL.from_pb(acl) for acl in answer.acls])

    async def describe_users(
        self, users: Sequence[str] = (), *, stale: bool = False
    ) -> tuple[UserCredentials, ...]:
        request = pb.DescribeUsersRequest(consistency=_consistency(stale), users=users)
        answer = await self._view(lambda stub: stub.DescribeUsers, request)
        return tuple([codec.USER.from_pb(each) for each in answer.users])

    async def describe_quotas(
        self, wanted: QuotaFilter | None = None, *, stale: bool = False
    ) -> tuple[tuple[QuotaEntity, Mapping[str, float]], ...]:
        wanted = wanted or QuotaFilter()
        request = pb.DescribeQuotasRequest(
            consistency=_consistency(stale),
            filter=[
                pb.QuotaPart(type=kind, any=True)
                if isinstance(name, EllipsisType)
                else pb.QuotaPart(type=kind, name=name)
                for kind, name in wanted.parts
            ],
            strict=wanted.strict,
        )
        answer = await self._view(lambda stub: stub.DescribeQuotas, request)
        found = [codec.QUOTAS.from_pb(each) for each in answer.entities]
        return tuple([(each.entity, each.quotas) for each in found])

    async def describe_tokens(
        self, owners: Sequence[str] = (), *, stale: bool = False
    ) -> tuple[DelegationToken, ...]:
        request = pb.DescribeTokensRequest(consistency=_consistency(stale), owners=owners)
        answer = await self._view(lambda stub: stub.DescribeTokens, request)
        return tuple([codec.TOKEN.from_pb(each) for each in answer.tokens])

    # --- asking

    async def _results(self, method: Callable[[Any], Any], request: Any) -> tuple[api.SettingResult, ...]:
        return codec.RESULTS.from_pb(await self._change(method, request)).results

    async def _change(self, method: Callable[[Any], Any], request: Any) -> Any:
        return await self._admin.ask(lambda channel: method(SettingsStub(channel)), request)

    async def _view(self, method: Callable[[Any], Any], request: Any) -> Any:
        return await self._admin.ask(lambda channel: method(SettingsViewStub(channel)), request)


def _consistency(stale: bool) -> common.Consistency.ValueType:
    return common.CONSISTENCY_STALE if stale else common.CONSISTENCY_DEFAULT


def _description(answer: pb.ConfigDescription) -> ConfigDescription:
    return ConfigDescription(
        resource=codec.CONFIG_RESOURCE.from_pb(answer.resource),
        error=error_from_pb(answer.error) if answer.HasField("error") else None,
        entries=tuple([codec.CONFIG_ENTRY.from_pb(each) for each in answer.entries]),
    )
