"""Requests about settings and their answers, between values and protobuf, both directions.

Owns the mapping only; see `settings_view_codec` for descriptions. Malformed requests raise ApiError.
"""

from __future__ import annotations

from collections.abc import Sequence

from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image import Acl, ConfigResource
from metaquorum.metadata.records.types import ControllerEndpoint, ControllerFeature
from metaquorum.metadata.requests import settings as api
from metaquorum.metadata.settings.acls import AclFilter
from metaquorum.proto import metadata_pb2 as common
from metaquorum.proto import settings_pb2 as pb
from metaquorum.runtime.api.api import Hints, error_from_pb, error_to_pb

RESOURCES_PER_ANSWER_MAX = 500
"""Configurations of one answer, well below the largest message; a client asks in parts."""


def results_to_pb(response: api.SettingsResponse, hints: Hints) -> pb.SettingsResponse:
    return pb.SettingsResponse(
        results=[
            pb.SettingResult(
                subject=each.subject, error=_refusal(each.error, each.message, hints), note=each.note
            )
            for each in response.results
        ]
    )


def results_from_pb(response: pb.SettingsResponse) -> api.SettingsResponse:
    results = []
    for each in response.results:
        error = error_from_pb(each.error) if each.HasField("error") else None
        results.append(
            api.SettingResult(
                subject=each.subject,
                error=ErrorCode.NONE if error is None else error.code,
                message=None if error is None else error.message,
                note=each.note if each.HasField("note") else None,
            )
        )
    return api.SettingsResponse(results=tuple(results))


def _refusal(code: ErrorCode, message: str | None, hints: Hints) -> common.Error | None:
    return None if code is ErrorCode.NONE else error_to_pb(ApiError(code, message or code.name), hints)


# ---- configurations ------------------------------------------------------------------------------


def resource_to_pb(resource: ConfigResource) -> pb.ConfigResource:
    return pb.ConfigResource(type=resource.resource_type, name=resource.name)


def resource_from_pb(resource: pb.ConfigResource) -> ConfigResource:
    return ConfigResource(resource.type, resource.name)


def alter_configs_to_pb(request: api.AlterConfigsRequest) -> pb.AlterConfigsRequest:
    return pb.AlterConfigsRequest(
        changes=[
            pb.ConfigChange(
                resource=resource_to_pb(each.resource),
                ops=[pb.ConfigOp(kind=op.kind.value, name=op.name, value=op.value) for op in each.ops],
            )
            for each in request.changes
        ],
        validate_only=request.validate_only,
    )


def alter_configs_from_pb(request: pb.AlterConfigsRequest) -> api.AlterConfigsRequest:
    """Raises ApiError INVALID_REQUEST."""
    return api.AlterConfigsRequest(
        changes=tuple(
            api.ConfigChange(
                resource=resource_from_pb(each.resource), ops=tuple(_op_from_pb(op) for op in each.ops)
            )
            for each in request.changes
        ),
        validate_only=request.validate_only,
    )


def _op_from_pb(op: pb.ConfigOp) -> api.ConfigOp:
    try:
        kind = api.OpKind(op.kind)
    except ValueError:
        text = f"{op.kind} cannot change {op.name}: 0 sets, 1 deletes, 2 appends, 3 subtracts"
        raise ApiError(ErrorCode.INVALID_REQUEST, text) from None
    return api.ConfigOp(kind=kind, name=op.name, value=op.value if op.HasField("value") else None)


# ---- feature levels ------------------------------------------------------------------------------


def update_features_to_pb(request: api.UpdateFeaturesRequest) -> pb.UpdateFeaturesRequest:
    return pb.UpdateFeaturesRequest(
        updates=[
            pb.FeatureUpdate(name=each.name, level=each.level, change=each.change.value)
            for each in request.updates
        ],
        validate_only=request.validate_only,
    )


def update_features_from_pb(request: pb.UpdateFeaturesRequest) -> api.UpdateFeaturesRequest:
    """Raises ApiError INVALID_UPDATE_VERSION for a way of changing that does not exist."""
    updates = []
    for each in request.updates:
        try:
            change = api.LevelChange(each.change)
        except ValueError:
            text = f"{each.change} cannot change {each.name}: 1 upgrades, 2 and 3 downgrade"
            raise ApiError(ErrorCode.INVALID_UPDATE_VERSION, text) from None
        updates.append(api.FeatureUpdate(name=each.name, level=each.level, change=change))
    return api.UpdateFeaturesRequest(updates=tuple(updates), validate_only=request.validate_only)


# ---- access control ------------------------------------------------------------------------------


def acl_to_pb(acl: Acl) -> pb.Acl:
    return pb.Acl(
        resource_type=acl.resource_type,
        resource_name=acl.resource_name,
        pattern_type=acl.pattern_type,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission_type=acl.permission_type,
    )


def acl_from_pb(acl: pb.Acl) -> Acl:
    return Acl(
        resource_type=acl.resource_type,
        resource_name=acl.resource_name,
        pattern_type=acl.pattern_type,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission_type=acl.permission_type,
    )


def filter_to_pb(wanted: AclFilter) -> pb.AclFilter:
    return pb.AclFilter(
        resource_type=wanted.resource_type,
        resource_name=wanted.resource_name,
        pattern_type=wanted.pattern_type,
        principal=wanted.principal,
        host=wanted.host,
        operation=wanted.operation,
        permission_type=wanted.permission_type,
    )


def filter_from_pb(wanted: pb.AclFilter) -> AclFilter:
    return AclFilter(
        resource_type=wanted.resource_type,
        resource_name=wanted.resource_name if wanted.HasField("resource_name") else None,
        pattern_type=wanted.pattern_type,
        principal=wanted.principal if wanted.HasField("principal") else None,
        host=wanted.host if wanted.HasField("host") else None,
        operation=wanted.operation,
        permission_type=wanted.permission_type,
    )


def create_acls_from_pb(request: pb.CreateAclsRequest) -> api.CreateAclsRequest:
    return api.CreateAclsRequest(acls=tuple(acl_from_pb(each) for each in request.acls))


def delete_acls_from_pb(request: pb.DeleteAclsRequest) -> api.DeleteAclsRequest:
    return api.DeleteAclsRequest(
        filters=tuple(filter_from_pb(each) for each in request.filters), validate_only=request.validate_only
    )


def deleted_acls_to_pb(response: api.DeleteAclsResponse, hints: Hints) -> pb.DeleteAclsResponse:
    return pb.DeleteAclsResponse(
        results=[
            pb.DeletedAcls(
                error=_refusal(each.error, each.message, hints), acls=[acl_to_pb(acl) for acl in each.acls]
            )
            for each in response.results
        ]
    )


def deleted_acls_from_pb(response: pb.DeleteAclsResponse) -> api.DeleteAclsResponse:
    results = []
    for each in response.results:
        error = error_from_pb(each.error) if each.HasField("error") else None
        results.append(
            api.DeletedAcls(
                error=ErrorCode.NONE if error is None else error.code,
                message=None if error is None else error.message,
                acls=tuple(acl_from_pb(acl) for acl in each.acls),
            )
        )
    return api.DeleteAclsResponse(results=tuple(results))


# ---- SCRAM ---------------------------------------------------------------------------------------


def alter_scram_to_pb(request: api.AlterScramRequest) -> pb.AlterScramRequest:
    return pb.AlterScramRequest(
        deletions=[pb.ScramDeletion(user=each.user, mechanism=each.mechanism) for each in request.deletions],
        upsertions=[
            pb.ScramUpsertion(
                user=each.user,
                mechanism=each.mechanism,
                iterations=each.iterations,
                salt=each.salt,
                salted_password=each.salted_password,
            )
            for each in request.upsertions
        ],
    )


def alter_scram_from_pb(request: pb.AlterScramRequest) -> api.AlterScramRequest:
    return api.AlterScramRequest(
        deletions=tuple(
            api.ScramDeletion(user=each.user, mechanism=each.mechanism) for each in request.deletions
        ),
        upsertions=tuple(
            api.ScramUpsertion(
                user=each.user,
                mechanism=each.mechanism,
                iterations=each.iterations,
                salt=each.salt,
                salted_password=each.salted_password,
            )
            for each in request.upsertions
        ),
    )


# ---- quotas --------------------------------------------------------------------------------------


def entity_to_pb(entity: Sequence[tuple[str, str | None]]) -> list[pb.QuotaPart]:
    return [pb.QuotaPart(type=kind, name=name) for kind, name in entity]


def entity_from_pb(parts: Sequence[pb.QuotaPart]) -> tuple[tuple[str, str | None], ...]:
    return tuple((part.type, part.name if part.HasField("name") else None) for part in parts)


def alter_quotas_to_pb(request: api.AlterQuotasRequest) -> pb.AlterQuotasRequest:
    return pb.AlterQuotasRequest(
        changes=[
            pb.QuotaChange(
                entity=entity_to_pb(each.entity),
                ops=[pb.QuotaOp(key=op.key, value=op.value) for op in each.ops],
            )
            for each in request.changes
        ],
        validate_only=request.validate_only,
    )


def alter_quotas_from_pb(request: pb.AlterQuotasRequest) -> api.AlterQuotasRequest:
    return api.AlterQuotasRequest(
        changes=tuple(
            api.QuotaChange(
                entity=entity_from_pb(each.entity),
                ops=tuple(
                    api.QuotaOp(key=op.key, value=op.value if op.HasField("value") else None)
                    for op in each.ops
                ),
            )
            for each in request.changes
        ),
        validate_only=request.validate_only,
    )


# ---- tokens --------------------------------------------------------------------------------------


def create_token_to_pb(request: api.CreateTokenRequest) -> pb.CreateTokenRequest:
    return pb.CreateTokenRequest(
        requester=request.requester,
        owner=request.owner,
        renewers=request.renewers,
        max_lifetime_ms=request.max_lifetime_ms,
    )


def create_token_from_pb(request: pb.CreateTokenRequest) -> api.CreateTokenRequest:
    return api.CreateTokenRequest(
        requester=request.requester,
        owner=request.owner if request.HasField("owner") else None,
        renewers=tuple(request.renewers),
        max_lifetime_ms=request.max_lifetime_ms if request.HasField("max_lifetime_ms") else None,
    )


def created_token_to_pb(response: api.CreateTokenResponse) -> pb.CreateTokenResponse:
    return pb.CreateTokenResponse(
        token_id=response.token_id,
        hmac=response.hmac,
        owner=response.owner,
        requester=response.requester,
        issue_timestamp_ms=response.issue_timestamp_ms,
        expiration_timestamp_ms=response.expiration_timestamp_ms,
        max_timestamp_ms=response.max_timestamp_ms,
    )


def created_token_from_pb(response: pb.CreateTokenResponse) -> api.CreateTokenResponse:
    return api.CreateTokenResponse(
        token_id=response.token_id,
        hmac=response.hmac,
        owner=response.owner,
        requester=response.requester,
        issue_timestamp_ms=response.issue_timestamp_ms,
        expiration_timestamp_ms=response.expiration_timestamp_ms,
        max_timestamp_ms=response.max_timestamp_ms,
    )


def token_change_to_pb(request: api.RenewTokenRequest | api.ExpireTokenRequest) -> pb.TokenChangeRequest:
    return pb.TokenChangeRequest(requester=request.requester, hmac=request.hmac, period_ms=request.period_ms)


def renew_token_from_pb(request: pb.TokenChangeRequest) -> api.RenewTokenRequest:
    return api.RenewTokenRequest(
        requester=request.requester, hmac=request.hmac, period_ms=_period_ms(request)
    )


def expire_token_from_pb(request: pb.TokenChangeRequest) -> api.ExpireTokenRequest:
    return api.ExpireTokenRequest(
        requester=request.requester, hmac=request.hmac, period_ms=_period_ms(request)
    )


def _period_ms(request: pb.TokenChangeRequest) -> int | None:
    return request.period_ms if request.HasField("period_ms") else None


def token_expiry_from_pb(response: pb.TokenExpiryResponse) -> api.TokenExpiryResponse:
    known = response.HasField("expiration_timestamp_ms")
    return api.TokenExpiryResponse(
        expiration_timestamp_ms=response.expiration_timestamp_ms if known else None
    )


# ---- controllers ---------------------------------------------------------------------------------


def register_controller_to_pb(request: api.RegisterControllerRequest) -> pb.RegisterControllerRequest:
    return pb.RegisterControllerRequest(
        controller_id=request.controller_id,
        incarnation_id=request.incarnation_id,
        endpoints=[
            common.Endpoint(
                name=each.name, host=each.host, port=each.port, security_protocol=each.security_protocol
            )
            for each in request.endpoints
        ],
        features=[
            common.Feature(
                name=each.name,
                min_supported_version=each.min_supported_version,
                max_supported_version=each.max_supported_version,
            )
            for each in request.features
        ],
    )


def register_controller_from_pb(request: pb.RegisterControllerRequest) -> api.RegisterControllerRequest:
    return api.RegisterControllerRequest(
        controller_id=request.controller_id,
        incarnation_id=request.incarnation_id,
        endpoints=tuple(
            ControllerEndpoint(
                name=each.name, host=each.host, port=each.port, security_protocol=each.security_protocol
            )
            for each in request.endpoints
        ),
        features=tuple(
            ControllerFeature(
                name=each.name,
                min_supported_version=each.min_supported_version,
                max_supported_version=each.max_supported_version,
            )
            for each in request.features
        ),
    )
