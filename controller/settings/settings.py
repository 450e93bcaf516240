"""Maps a request about settings to the decision on it.

Owns only the dispatch. Does not decide: the modules beside it do, and `brokers.registrations` for
controllers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never

from metaquorum.controller.brokers.registrations import decide_register_controller
from metaquorum.controller.result import ControllerResult
from metaquorum.controller.settings.acls import decide_create_acls, decide_delete_acls
from metaquorum.controller.settings.configs import decide_alter_configs
from metaquorum.controller.settings.feature_levels import decide_update_features
from metaquorum.controller.settings.producer_ids import decide_allocate_producer_ids
from metaquorum.controller.settings.quotas import decide_alter_quotas
from metaquorum.controller.settings.scram import decide_alter_scram
from metaquorum.controller.settings.tokens import decide_create_token, decide_expire_token, decide_renew_token
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.node_configs.controller import ControllerConfig
from metaquorum.metadata.requests.settings import (
    AllocateProducerIdsRequest,
    AlterConfigsRequest,
    AlterQuotasRequest,
    AlterScramRequest,
    CreateAclsRequest,
    CreateTokenRequest,
    DeleteAclsRequest,
    ExpireTokenRequest,
    RegisterControllerRequest,
    RenewTokenRequest,
    SettingsRequest,
    UpdateFeaturesRequest,
)


def decide_settings(  # noqa: PLR0911
    image: MetadataImage,
    request: SettingsRequest,
    config: ControllerConfig,
    *,
    voters: frozenset[int],
    kraft_version: int,
    wall_ms: int,
    new_id: Callable[[], bytes],
) -> ControllerResult:
    """The decision on one request. `wall_ms` is Unix time, `voters` are the ids of all controllers."""
    match request:
        case AlterConfigsRequest():
            return decide_alter_configs(image, request, config, voters=voters)
        case UpdateFeaturesRequest():
            return decide_update_features(image, request, node_id=config.node_id, voters=voters)
        case CreateAclsRequest():
            return decide_create_acls(image, request, config, new_id=new_id)
        case DeleteAclsRequest():
            return decide_delete_acls(image, request, config)
        case AlterScramRequest():
            return decide_alter_scram(image, request)
        case AlterQuotasRequest():
            return decide_alter_quotas(image, request, config)
        case CreateTokenRequest():
            return decide_create_token(image, request, config, new_id=new_id(), wall_ms=wall_ms)
        case RenewTokenRequest():
            return decide_renew_token(image, request, config, wall_ms=wall_ms)
        case ExpireTokenRequest():
            return decide_expire_token(image, request, config, wall_ms=wall_ms)
        case AllocateProducerIdsRequest():
            return decide_allocate_producer_ids(image, request)
        case RegisterControllerRequest():
            static = voters if kraft_version == 0 else None
            return decide_register_controller(image, request, static_voters=static)
        case _:
            assert_never(request)
