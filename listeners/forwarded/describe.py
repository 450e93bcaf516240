"""Responses that describe settings from an image: entries, credentials and quotas, never a secret."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from itertools import groupby
from types import EllipsisType
from typing import Any

import msgspec

from metaquorum.clients.acl_fields import RIGHT, in_message
from metaquorum.listeners.access.steps import CLUSTER, CONFIGURED, AccessStep, Each, RightNeeded, on_cluster
from metaquorum.listeners.forwarded.access import acl_filter
from metaquorum.listeners.forwarded.described_configs import OwnConfig, describe_configs
from metaquorum.listeners.services import Offered
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image import (
    BROKER_LOGGER_RESOURCE,
    BROKER_RESOURCE,
    CLIENT_METRICS_RESOURCE,
    GROUP_RESOURCE,
    TOPIC_RESOURCE,
    Acl,
    MetadataImage,
)
from metaquorum.metadata.settings.acls import Operation as Op
from metaquorum.metadata.settings.acls import filter_problem, list_acls
from metaquorum.metadata.settings.quotas import CLIENT_ID, IP, USER, QuotaFilter, describe_quotas
from metaquorum.metadata.settings.scram import describe_users
from metaquorum.wire.messages import (
    DescribeAclsRequest,
    DescribeAclsResponse,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from metaquorum.wire.table import API_BY_NAME

_EXACT, _DEFAULT, _ANY = 0, 1, 2


def describe_acls(body: DescribeAclsRequest, version: int, image: MetadataImage) -> DescribeAclsResponse:
    """The entries that match the filter, by resource."""
    wanted = acl_filter(body)
    problem = filter_problem(wanted)
    if problem is not None:
        return DescribeAclsResponse(error_code=ErrorCode.INVALID_REQUEST, error_message=problem)
    matching = sorted(
        (acl for _, acl in list_acls(image, wanted)),
        key=lambda acl: (*_resource(acl), acl.principal, acl.host, acl.operation, acl.permission_type),
    )
    return DescribeAclsResponse(
        error_message="",
        resources=tuple(
            DescribeAclsResponse.DescribeAclsResource(
                resource_type=kind,
                resource_name=name,
                pattern_type=pattern,
                acls=tuple(DescribeAclsResponse.AclDescription(**in_message(acl, RIGHT)) for acl in acls),
            )
            for (kind, name, pattern), acls in groupby(matching, key=_resource)
        ),
    )


def _resource(acl: Acl) -> tuple[int, str, int]:
    return acl.resource_type, acl.resource_name, acl.pattern_type


def describe_user_scram_credentials(
    body: DescribeUserScramCredentialsRequest, version: int, image: MetadataImage
) -> DescribeUserScramCredentialsResponse:
    """Mechanisms and iterations of these users; of all if the request names none (KIP-554)."""
    names = [each.name for each in body.users or ()]
    times = Counter(names)
    by_user = {each.user: each.iterations for each in describe_users(image, tuple(times))}
    Result = DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult

    def result(name: str) -> DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult:
        if times[name] > 1:
            text = f"the request names user {name} twice: name each user once"
            return Result(user=name, error_code=ErrorCode.DUPLICATE_RESOURCE, error_message=text)
        if name not in by_user:
            text = f"user {name} has no SCRAM credentials: describe all users to see which have"
            return Result(user=name, error_code=ErrorCode.RESOURCE_NOT_FOUND, error_message=text)
        return Result(
            user=name,
            error_message="",
            credential_infos=tuple(
                DescribeUserScramCredentialsResponse.CredentialInfo(
                    mechanism=mechanism, iterations=iterations
                )
                for mechanism, iterations in by_user[name]
            ),
        )

    return DescribeUserScramCredentialsResponse(
        error_message="", results=tuple(map(result, times or by_user))
    )


def describe_client_quotas(
    body: DescribeClientQuotasRequest, version: int, image: MetadataImage
) -> DescribeClientQuotasResponse:
    """The quotas of the entities that match the components (KIP-546)."""
    try:
        wanted = QuotaFilter(parts=_filter(body), strict=body.strict)
    except ApiError as error:
        return DescribeClientQuotasResponse(error_code=error.code, error_message=error.message, entries=None)
    return DescribeClientQuotasResponse(
        error_message="",
        entries=tuple(
            DescribeClientQuotasResponse.EntryData(
                entity=tuple(
                    DescribeClientQuotasResponse.EntityData(entity_type=kind, entity_name=name)
                    for kind, name in entity
                ),
                values=tuple(
                    DescribeClientQuotasResponse.ValueData(key=key, value=value)
                    for key, value in quotas.items()
                ),
            )
            for entity, quotas in describe_quotas(image, wanted)
        ),
    )


def list_config_resources(
    body: ListConfigResourcesRequest, version: int, image: MetadataImage
) -> ListConfigResourcesResponse:
    """The names of resources that have configurations, of these types or of all; version 0 is about client
    metrics (KIP-1000, KIP-1142)."""
    brokers = [str(broker_id) for broker_id in image.brokers]
    names = {CLIENT_METRICS_RESOURCE: _configured(image, CLIENT_METRICS_RESOURCE)}
    if version >= 1:
        names |= {
            TOPIC_RESOURCE: [each.name for each in image.topics.all()],
            BROKER_RESOURCE: brokers,
            BROKER_LOGGER_RESOURCE: brokers,
            GROUP_RESOURCE: _configured(image, GROUP_RESOURCE),
        }
    wanted = body.resource_types or sorted(names)
    if not names.keys() >= set(wanted):
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    return ListConfigResourcesResponse(
        config_resources=tuple(
            ListConfigResourcesResponse.ConfigResource(resource_name=name, resource_type=kind)
            for kind in dict.fromkeys(wanted)
            for name in sorted(names[kind])
        )
    )


def _configured(image: MetadataImage, kind: int) -> list[str]:
    return [resource.name for resource, _ in image.configs.items_sorted() if resource.resource_type == kind]


def _filter(body: DescribeClientQuotasRequest) -> tuple[tuple[str, str | EllipsisType | None], ...]:
    """The filter in a request. Raises ApiError for components that exclude each other."""
    parts: dict[str, str | EllipsisType | None] = {}
    for component in body.components:
        kind = component.entity_type
        if not kind or kind in parts:
            text = f"{kind} is named twice: name it once" if kind else "an entity type is empty: name one"
            raise ApiError(ErrorCode.INVALID_REQUEST, text)
        if kind not in {USER, CLIENT_ID, IP}:
            text = f"{kind!r} is not an entity type: use {USER}, {CLIENT_ID} or {IP}"
            raise ApiError(ErrorCode.UNSUPPORTED_VERSION, text)
        parts[kind] = _match(component)
    if IP in parts and len(parts) > 1:
        text = "an ip cannot be combined with a user or a client-id: request them separately"
        raise ApiError(ErrorCode.INVALID_REQUEST, text)
    return tuple(parts.items())


def _match(component: DescribeClientQuotasRequest.ComponentData) -> str | EllipsisType | None:
    if component.match_type not in {_EXACT, _DEFAULT, _ANY}:
        text = f"{component.match_type} is not a match: 0 takes one name, 1 the default, 2 any name"
        raise ApiError(ErrorCode.INVALID_REQUEST, text)
    if (component.match is None) == (component.match_type == _EXACT):
        text = f"{component.entity_type}: match 0 needs a name, and the others take none"
        raise ApiError(ErrorCode.INVALID_REQUEST, text)
    if component.match_type == _ANY:
        return ...
    return component.match


class Described(msgspec.Struct, frozen=True, kw_only=True):
    """An API that the image alone answers: `answer` takes the request's body and version.
    `is_of_controllers`: Kafka's controllers have it on their own listeners, too."""

    answer: Callable[[Any, int, MetadataImage], object]
    rights: tuple[AccessStep, ...]
    is_of_controllers: bool = True


DESCRIBED: dict[str, Described] = {
    "DescribeConfigs": Described(
        answer=describe_configs,
        rights=(Each("resources", "results", (RightNeeded(Op.DESCRIBE_CONFIGS, CLUSTER, CONFIGURED),)),),
    ),
    "DescribeAcls": Described(answer=describe_acls, rights=(on_cluster(Op.DESCRIBE),)),
    "DescribeClientQuotas": Described(
        answer=describe_client_quotas, rights=(on_cluster(Op.DESCRIBE_CONFIGS),)
    ),
    "DescribeUserScramCredentials": Described(
        answer=describe_user_scram_credentials, rights=(on_cluster(Op.DESCRIBE),)
    ),
    "ListConfigResources": Described(
        answer=list_config_resources, rights=(on_cluster(Op.DESCRIBE_CONFIGS),), is_of_controllers=False
    ),
}
DESCRIBED_BY_CONTROLLERS = {name: each for name, each in DESCRIBED.items() if each.is_of_controllers}


def out_of_image(
    described: Mapping[str, Described], image: Callable[[], MetadataImage], own: OwnConfig
) -> dict[str, Offered]:
    """What a listener of the node with `own` offers of these, in the versions that `wire/tables` has."""
    answers = {name: each.answer for name, each in described.items()}
    answers["DescribeConfigs"] = partial(describe_configs, own=own)

    def offered(name: str, answer: Callable[[Any, int, MetadataImage], object]) -> Offered:
        return Offered(
            API_BY_NAME[name].min_version,
            API_BY_NAME[name].max_version,
            lambda request, client: answer(request.body, request.header.version, image()),
        )

    return {name: offered(name, answer) for name, answer in answers.items()}
