"""Requests about settings and their answers, between values and protobuf."""

from __future__ import annotations

from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image import ConfigResource
from metaquorum.metadata.requests import settings as api
from metaquorum.proto import settings_pb2 as pb
from metaquorum.runtime.api.brokers import NO_TAGS
from metaquorum.runtime.api.codec import MessageCodec
from metaquorum.runtime.api.shapes import FieldRule


def _op_kind(op: pb.ConfigOp) -> api.OpKind:
    try:
        return api.OpKind(op.kind)
    except ValueError:
        text = f"{op.kind} cannot change {op.name}: 0 sets, 1 deletes, 2 appends, 3 subtracts"
        raise ApiError(ErrorCode.INVALID_REQUEST, text) from None


def _level_change(update: pb.FeatureUpdate) -> api.LevelChange:
    try:
        return api.LevelChange(update.change)
    except ValueError:
        text = f"{update.change} cannot change {update.name}: 1 upgrades, 2 and 3 downgrade"
        raise ApiError(ErrorCode.INVALID_UPDATE_VERSION, text) from None


RESULTS = MessageCodec(api.SettingsResponse, pb.SettingsResponse)
CONFIG_RESOURCE = MessageCodec(ConfigResource, pb.ConfigResource, resource_type="type")
ALTER_CONFIGS = MessageCodec(
    api.AlterConfigsRequest,
    pb.AlterConfigsRequest,
    changes=FieldRule(
        nested={
            "resource": FieldRule(nested=CONFIG_RESOURCE.fields),
            "ops": FieldRule(nested={"kind": FieldRule(decode=_op_kind)}),
            "replaces": FieldRule(local=True),
        }
    ),
)
UPDATE_FEATURES = MessageCodec(
    api.UpdateFeaturesRequest,
    pb.UpdateFeaturesRequest,
    updates=FieldRule(nested={"change": FieldRule(decode=_level_change)}),
)
CREATE_ACLS = MessageCodec(api.CreateAclsRequest, pb.CreateAclsRequest)
DELETE_ACLS = MessageCodec(api.DeleteAclsRequest, pb.DeleteAclsRequest)
DELETED_ACLS = MessageCodec(api.DeleteAclsResponse, pb.DeleteAclsResponse)
ALTER_SCRAM = MessageCodec(api.AlterScramRequest, pb.AlterScramRequest)
ALTER_QUOTAS = MessageCodec(api.AlterQuotasRequest, pb.AlterQuotasRequest)
CREATE_TOKEN = MessageCodec(api.CreateTokenRequest, pb.CreateTokenRequest)
CREATED_TOKEN = MessageCodec(api.CreateTokenResponse, pb.CreateTokenResponse)
RENEW_TOKEN = MessageCodec(api.RenewTokenRequest, pb.TokenChangeRequest)
EXPIRE_TOKEN = MessageCodec(api.ExpireTokenRequest, pb.TokenChangeRequest)
TOKEN_EXPIRY = MessageCodec(api.TokenExpiryResponse, pb.TokenExpiryResponse)
ALLOCATE_PRODUCER_IDS = MessageCodec(api.AllocateProducerIdsRequest, pb.AllocateProducerIdsRequest)
ALLOCATED_PRODUCER_IDS = MessageCodec(api.AllocateProducerIdsResponse, pb.AllocateProducerIdsResponse)
REGISTER_CONTROLLER = MessageCodec(
    api.RegisterControllerRequest,
    pb.RegisterControllerRequest,
    endpoints=FieldRule(nested=NO_TAGS),
    features=FieldRule(nested=NO_TAGS),
)
