"""Requests about configurations, feature levels, access control, SCRAM, quotas, tokens and producer ids.

Shapes follow Kafka's messages of the same names; see `requests` for the conventions. Every response with
several parts has a result for each, in the order of the request.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.image import Acl, ConfigResource
from metaquorum.metadata.records.parts import ControllerEndpoint, ControllerFeature
from metaquorum.metadata.settings.acls import AclFilter


class OpKind(Enum):
    """What a configuration change does; the numbers are those of Kafka's protocol."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigOp:
    """`value` None: of DELETE only. Append and subtract take several parts at once, separated by commas."""

    kind: OpKind
    name: str
    value: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigChange:
    """What changes of one resource; nothing else of it does, unless it `replaces` (AlterConfigs, key 33):
    then every key that it does not name is deleted."""

    resource: ConfigResource
    ops: tuple[ConfigOp, ...]
    replaces: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterConfigsRequest:
    """KIP-339 IncrementalAlterConfigs (key 44)."""

    changes: tuple[ConfigChange, ...]
    validate_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingResult:
    """One part of a request: `subject` says which; `error` NONE, or the refusal and its text in `message`.
    `note`: what was accepted and changes nothing yet."""

    subject: str
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsResponse:
    results: tuple[SettingResult, ...]


class LevelChange(Enum):
    """How a feature level may move; the numbers are those of Kafka's protocol."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureUpdate:
    name: str
    level: int
    change: LevelChange = LevelChange.UPGRADE


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateFeaturesRequest:
    """KIP-584 UpdateFeatures (key 57)."""

    updates: tuple[FeatureUpdate, ...]
    validate_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateAclsRequest:
    """CreateAcls (key 30). An entry that exists is no error."""

    acls: tuple[Acl, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteAclsRequest:
    """DeleteAcls (key 31): every entry that a filter means. `validate_only`: only say which."""

    filters: tuple[AclFilter, ...]
    validate_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletedAcls:
    """What one filter removed, or why it was refused."""

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    acls: tuple[Acl, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteAclsResponse:
    results: tuple[DeletedAcls, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScramDeletion:
    """`mechanism`: 1 SCRAM-SHA-256, 2 SCRAM-SHA-512."""

    user: str
    mechanism: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ScramUpsertion:
    """`salted_password` is what RFC 5802 calls SaltedPassword; the password itself stays with the client."""

    user: str
    mechanism: int
    iterations: int
    salt: bytes
    salted_password: bytes

    def __repr__(self) -> str:
        return f"ScramUpsertion({self.user!r}, mechanism={self.mechanism}, iterations={self.iterations})"


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterScramRequest:
    """KIP-554 AlterUserScramCredentials (key 51). A result for each user, in order of first mention."""

    deletions: tuple[ScramDeletion, ...] = ()
    upsertions: tuple[ScramUpsertion, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaOp:
    """`value` None removes the quota."""

    key: str
    value: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaChange:
    """`entity`: (type, name) parts, name None for the default."""

    entity: tuple[tuple[str, str | None], ...]
    ops: tuple[QuotaOp, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterQuotasRequest:
    """KIP-546 AlterClientQuotas (key 49)."""

    changes: tuple[QuotaChange, ...]
    validate_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTokenRequest:
    """KIP-48 CreateDelegationToken (key 38). Principals as `User:name`; `owner` None: the requester."""

    requester: str
    owner: str | None = None
    renewers: tuple[str, ...] = ()
    max_lifetime_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTokenResponse:
    """`hmac` is the token's secret: a client that holds it may renew, expire and (elsewhere) log in."""

    token_id: str
    hmac: bytes
    owner: str
    requester: str
    issue_timestamp_ms: int
    expiration_timestamp_ms: int
    max_timestamp_ms: int

    def __repr__(self) -> str:
        return f"CreateTokenResponse({self.token_id!r}, owner={self.owner!r})"


@dataclass(frozen=True, slots=True, kw_only=True)
class RenewTokenRequest:
    """RenewDelegationToken (key 39). `period_ms` None: the controllers' default."""

    requester: str
    hmac: bytes
    period_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpireTokenRequest:
    """ExpireDelegationToken (key 40). `period_ms` None: remove it now."""

    requester: str
    hmac: bytes
    period_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenExpiryResponse:
    """None: the token is gone."""

    expiration_timestamp_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocateProducerIdsRequest:
    """KIP-730 AllocateProducerIds (key 67)."""

    broker_id: int
    broker_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocateProducerIdsResponse:
    """The broker owns `count` ids from `first_id` on, for good."""

    first_id: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterControllerRequest:
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
SETTINGS_REQUESTS = (
    AlterConfigsRequest,
    UpdateFeaturesRequest,
    CreateAclsRequest,
    DeleteAclsRequest,
    AlterScramRequest,
    AlterQuotasRequest,
    CreateTokenRequest,
    RenewTokenRequest,
    ExpireTokenRequest,
    AllocateProducerIdsRequest,
    RegisterControllerRequest,
)
SettingsAnswer = (
    SettingsResponse
    | DeleteAclsResponse
    | CreateTokenResponse
    | TokenExpiryResponse
    | AllocateProducerIdsResponse
)
