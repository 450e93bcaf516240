"""The SettingsView service: configurations, levels, entries, users, quotas and tokens out of one image.

Owns the mapping of descriptions to protobuf. Where the image comes from is the `ImageSource` that a
controller or a broker brings, as for the Metadata service; what a description says is decided in
`metadata.settings`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import EllipsisType
from typing import Any

from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image import (
    BROKER_RESOURCE,
    CLIENT_METRICS_RESOURCE,
    TOPIC_RESOURCE,
    ConfigResource,
    MetadataImage,
)
from metaquorum.metadata.settings.acls import filter_problem, list_acls
from metaquorum.metadata.settings.configs import describe_resource
from metaquorum.metadata.settings.levels import describe_features
from metaquorum.metadata.settings.quotas import QuotaFilter, describe_quotas
from metaquorum.metadata.settings.scram import describe_users
from metaquorum.proto import metadata_pb2 as common
from metaquorum.proto import settings_pb2 as pb
from metaquorum.proto.settings_pb2_grpc import SettingsViewServicer
from metaquorum.runtime.api import settings as codec
from metaquorum.runtime.api.errors import Hints, error_to_pb
from metaquorum.runtime.api.settings import RESOURCES_PER_ANSWER_MAX
from metaquorum.runtime.rpc.image_service import ImageSource

MAX_BROKER_ID = 2**31 - 1


class SettingsViewService(SettingsViewServicer):
    """`kraft_version`: the level that is committed as far as this node knows. `static`: broker keys that this
    node's own file sets, for the sources of values."""

    def __init__(
        self,
        source: ImageSource,
        *,
        node_id: int,
        kraft_version: Callable[[], int],
        hints: Hints,
        static: Mapping[str, str] | None = None,
    ) -> None:
        self._source = source
        self._node_id = node_id
        self._kraft_version = kraft_version
        self._hints = hints
        self._static = static or {}

    async def DescribeConfigs(
        self, request: pb.DescribeConfigsRequest, context: Any
    ) -> pb.DescribeConfigsResponse:
        read = await self._source.read(request.consistency)
        if isinstance(read, ApiError):
            return pb.DescribeConfigsResponse(error=self._error(read))
        wanted = [codec.CONFIG_RESOURCE.from_pb(each) for each in request.resources]
        if len(wanted) > RESOURCES_PER_ANSWER_MAX:
            text = (
                f"{len(wanted)} resources are too many for one request: request at most "
                f"{RESOURCES_PER_ANSWER_MAX}"
            )
            return pb.DescribeConfigsResponse(error=self._error(ApiError(ErrorCode.INVALID_REQUEST, text)))
        return pb.DescribeConfigsResponse(
            read=read.info(self._node_id),
            resources=[self._describe(read.image, each, request.all_keys) for each in wanted],
        )

    def _describe(
        self, image: MetadataImage, resource: ConfigResource, all_keys: bool
    ) -> pb.ConfigDescription:
        shown = codec.CONFIG_RESOURCE.to_pb(resource)
        refusal = _refusal(image, resource)
        if refusal is not None:
            return pb.ConfigDescription(resource=shown, error=self._error(refusal))
        entries = describe_resource(
            image, resource, broker_id=self._node_id, static=self._static, all_keys=all_keys
        )
        return pb.ConfigDescription(
            resource=shown, entries=[codec.CONFIG_ENTRY.to_pb(each) for each in entries]
        )

    async def DescribeFeatures(
        self, request: pb.DescribeFeaturesRequest, context: Any
    ) -> pb.DescribeFeaturesResponse:
        read = await self._source.read(request.consistency)
        if isinstance(read, ApiError):
            return pb.DescribeFeaturesResponse(error=self._error(read))
        return pb.DescribeFeaturesResponse(
            read=read.info(self._node_id),
            features=[
                codec.FEATURE.to_pb(each) for each in describe_features(read.image, self._kraft_version())
            ],
        )

    async def ListAcls(self, request: pb.ListAclsRequest, context: Any) -> pb.ListAclsResponse:
        read = await self._source.read(request.consistency)
        if isinstance(read, ApiError):
            return pb.ListAclsResponse(error=self._error(read))
        wanted = codec.ACL_FILTER.from_pb(request.filter)
        problem = filter_problem(wanted)
        if problem is not None:
            return pb.ListAclsResponse(error=self._error(ApiError(ErrorCode.INVALID_REQUEST, problem)))
        return pb.ListAclsResponse(
            read=read.info(self._node_id),
            acls=[codec.ACL.to_pb(acl) for _, acl in list_acls(read.image, wanted)],
        )

    async def DescribeUsers(self, request: pb.DescribeUsersRequest, context: Any) -> pb.DescribeUsersResponse:
        read = await self._source.read(request.consistency)
        if isinstance(read, ApiError):
            return pb.DescribeUsersResponse(error=self._error(read))
        return pb.DescribeUsersResponse(
            read=read.info(self._node_id),
            users=[codec.USER.to_pb(each) for each in describe_users(read.image, tuple(request.users))],
        )

    async def DescribeQuotas(
        self, request: pb.DescribeQuotasRequest, context: Any
    ) -> pb.DescribeQuotasResponse:
        read = await self._source.read(request.consistency)
        if isinstance(read, ApiError):
            return pb.DescribeQuotasResponse(error=self._error(read))
        parts = tuple((part.type, _filter_name(part)) for part in request.filter)
        found = describe_quotas(read.image, QuotaFilter(parts=parts, strict=request.strict))
        return pb.DescribeQuotasResponse(
            read=read.info(self._node_id),
            entities=[
                codec.QUOTAS.to_pb(codec.QuotaListing(entity=entity, quotas=quotas))
                for entity, quotas in found
            ],
        )

    async def DescribeTokens(
        self, request: pb.DescribeTokensRequest, context: Any
    ) -> pb.DescribeTokensResponse:
        read = await self._source.read(request.consistency)
        if isinstance(read, ApiError):
            return pb.DescribeTokensResponse(error=self._error(read))
        owners = set(request.owners)
        return pb.DescribeTokensResponse(
            read=read.info(self._node_id),
            tokens=[
                codec.TOKEN.to_pb(token)
                for _, token in read.image.delegation_tokens.items_sorted()
                if not owners or token.owner in owners
            ],
        )

    def _error(self, error: ApiError) -> common.Error:
        return error_to_pb(error, self._hints)


def _refusal(image: MetadataImage, resource: ConfigResource) -> ApiError | None:
    """A broker that is not registered has a configuration still, a topic that is gone has none."""
    name = resource.name
    match resource.resource_type:
        case 2 if image.topics.topic_named(name) is None:
            text = f"there is no topic {name}: list the topics to see which exist"
            return ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text)
        case 4 if name and not (name.isascii() and name.isdecimal() and int(name) <= MAX_BROKER_ID):
            return ApiError(ErrorCode.INVALID_REQUEST, f"{name!r} is not a broker id: write a whole number")
        case other if other not in {TOPIC_RESOURCE, BROKER_RESOURCE, CLIENT_METRICS_RESOURCE}:
            text = f"resource type {other} has no configuration: use topic, broker or client-metrics"
            return ApiError(ErrorCode.INVALID_REQUEST, text)
        case _:
            return None


def _filter_name(part: pb.QuotaPart) -> str | EllipsisType | None:
    if part.any:
        return ...
    return part.name if part.HasField("name") else None
