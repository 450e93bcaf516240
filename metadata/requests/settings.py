"""Requests about configurations, feature levels, access control, SCRAM, quotas, tokens and producer ids.

They follow Kafka's messages of the same names, with the conventions of `common`. Every response with several
parts has one result per part, in the order of the request.
"""

from __future__ import annotations

from enum import Enum

import msgspec

from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.image import Acl, ConfigResource
from metaquorum.metadata.records.types import ControllerEndpoint, ControllerFeature
from metaquorum.metadata.settings.acls import AclFilter


class OpKind(Enum):
    """The kind of a configuration change; the numbers are those of Kafka's protocol."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class ConfigOp(msgspec.Struct, frozen=True, kw_only=True):
    """`value` is None only for DELETE. Append and subtract take several parts, separated by commas."""

    kind: OpKind
    name: str
    value: str | None = None


class ConfigChange(msgspec.Struct, frozen=True, kw_only=True):
    """The changes to one resource. Other keys stay unchanged unless it `replaces` (AlterConfigs, key 33):
    then every key that is not listed is deleted."""

    resource: ConfigResource
    ops: tuple[ConfigOp, ...]
    replaces: bool = False


class AlterConfigsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """KIP-339 IncrementalAlterConfigs (key 44)."""

    changes: tuple[ConfigChange, ...]
    validate_only: bool = False


class SettingResult(msgspec.Struct, frozen=True, kw_only=True):
    """One part of a request: `subject` identifies it; `error` NONE, or the refusal and its text in `message`.
    `note`: what was accepted but has no effect yet."""

    subject: str
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    note: str | None = None


class SettingsResponse(msgspec.Struct, frozen=True, kw_only=True):
    results: tuple[SettingResult, ...]


class LevelChange(Enum):
    """How a feature level may change; the numbers are those of Kafka's protocol."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


class FeatureUpdate(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    level: int
    change: LevelChange = LevelChange.UPGRADE


class UpdateFeaturesRequest(msgspec.Struct, frozen=True, kw_only=True):
    """KIP-584 UpdateFeatures (key 57)."""

    updates: tuple[FeatureUpdate, ...]
    validate_only: bool = False


class CreateAclsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """CreateAcls (key 30). An existing entry is not an error."""

    acls: tuple[Acl, ...]


class DeleteAclsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """DeleteAcls (key 31): every entry that matches a filter. `validate_only`: only list them."""

    filters: tuple[AclFilter, ...]
    validate_only: bool = False


class DeletedAcls(msgspec.Struct, frozen=True, kw_only=True):
    """What one filter removed, or why it was refused."""

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    acls: tuple[Acl, ...] = ()


class DeleteAclsResponse(msgspec.Struct, frozen=True, kw_only=True):
    results: tuple[DeletedAcls, ...]


class ScramDeletion(msgspec.Struct, frozen=True, kw_only=True):
    """`mechanism`: 1 SCRAM-SHA-256, 2 SCRAM-SHA-512."""

    user: str
    mechanism: int


class ScramUpsertion(msgspec.Struct, frozen=True, kw_only=True):
    """`salted_password` is what RFC 5802 calls SaltedPassword; the password itself stays with the client."""

    user: str
    mechanism: int
    iterations: int
    salt: bytes
    salted_password: bytes

    def __repr__(self) -> str:
        return f"ScramUpsertion({self.user!r}, mechanism={self.mechanism}, iterations={self.iterations})"


class AlterScramRequest(msgspec.Struct, frozen=True, kw_only=True):
    """KIP-554 AlterUserScramCredentials (key 51). One result per user, in order of first mention."""

    deletions: tuple[ScramDeletion, ...] = ()
    upsertions: tuple[ScramUpsertion, ...] = ()


class QuotaOp(msgspec.Struct, frozen=True, kw_only=True):
    """`value` None removes the quota."""

    key: str
    value: float | None


class QuotaChange(msgspec.Struct, frozen=True, kw_only=True):
    """`entity`: (type, name) parts, name None for the default."""

    entity: tuple[tuple[str, str | None], ...]
    ops: tuple[QuotaOp, ...]


class AlterQuotasRequest(msgspec.Struct, frozen=True, kw_only=True):
    """KIP-546 AlterClientQuotas (key 49)."""

    changes: tuple[QuotaChange, ...]
    validate_only: bool = False


class CreateTokenRequest(msgspec.Struct, frozen=True, kw_only=True):
    """KIP-48 CreateDelegationToken (key 38). Principals as `User:name`; `owner` None: the requester.
    `max_lifetime_ms` 0 or below: as long as allowed."""

    requester: str
    owner: str | None = None
    renewers: tuple[str, ...] = ()
    max_lifetime_ms: int = -1


class CreateTokenResponse(msgspec.Struct, frozen=True, kw_only=True):
    """`hmac` is the token's secret: a client that has it may renew it, expire it and
    (elsewhere) log in with it."""

    token_id: str
    hmac: bytes
    owner: str
    requester: str
    issue_timestamp_ms: int
    expiration_timestamp_ms: int
    max_timestamp_ms: int

    def __repr__(self) -> str:
        return f"CreateTokenResponse({self.token_id!r}, owner={self.owner!r})"


class RenewTokenRequest(msgspec.Struct, frozen=True, kw_only=True):
    """RenewDelegationToken (key 39). `period_ms` None: the controllers' default."""

    requester: str
    hmac: bytes
    period_ms: int | None = None


class ExpireTokenRequest(msgspec.Struct, frozen=True, kw_only=True):
    """ExpireDelegationToken (key 40). `period_ms` None: remove it now."""

    requester: str
    hmac: bytes
    period_ms: int | None = None


class TokenExpiryResponse(msgspec.Struct, frozen=True, kw_only=True):
    """None: the token was removed."""

    expiration_timestamp_ms: int | None


class AllocateProducerIdsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """KIP-730 AllocateProducerIds (key 67)."""

    broker_id: int
    broker_epoch: int


class AllocateProducerIdsResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The broker owns `count` ids from `first_id` on, permanently."""

    first_id: int
    count: int


class RegisterControllerRequest(msgspec.Struct, frozen=True, kw_only=True):
    """KIP-919 ControllerRegistration (key 70)."""

    controller_id: int
    incarnation_id: bytes
    endpoints: tuple[ControllerEndpoint, ...]
    features: tuple[ControllerFeature, ...]


SettingsRequest = (
    AlterConfigsRequest
    | UpdateFeaturesRequest
    | CreateAclsRequest
    | DeleteAclsRequest
    | AlterScramRequest
    | AlterQuotasRequest
    | CreateTokenRequest
    | RenewTokenRequest
    | ExpireTokenRequest
    | AllocateProducerIdsRequest
    | RegisterControllerRequest
)
SettingsAnswer = (
    SettingsResponse
    | DeleteAclsResponse
    | CreateTokenResponse
    | TokenExpiryResponse
    | AllocateProducerIdsResponse
)
