"""Registrations of controllers (KIP-919): their identity and the feature levels that they support.

Owns the decision and the record. Does not know when a level is finalized, which needs a report from every
voter (`settings.feature_levels`); registrations of brokers are in `brokers`.
"""

from __future__ import annotations

from metaquorum.controller.features import LEVEL_CONTROLLER_REGISTRATION
from metaquorum.controller.result import ControllerResult
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.features import KNOWN_FEATURES
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.node_configs.controller import ControllerConfig
from metaquorum.metadata.records.parts import ControllerFeature
from metaquorum.metadata.records.types import ControllerRecord
from metaquorum.metadata.requests.common import Done
from metaquorum.metadata.requests.settings import RegisterControllerRequest
from metaquorum.storage.uuids import UUID_BYTES


def own_registration(
    image: MetadataImage, config: ControllerConfig, incarnation_id: bytes
) -> RegisterControllerRequest | None:
    """This controller's registration; None if it is in the log already, or the log cannot hold it yet."""
    if image.features.metadata_version < LEVEL_CONTROLLER_REGISTRATION:
        return None
    known = image.controllers.get(config.node_id)
    if known is not None and known.incarnation_id == incarnation_id:
        return None
    return RegisterControllerRequest(
        controller_id=config.node_id,
        incarnation_id=incarnation_id,
        endpoints=config.endpoints,
        features=tuple(
            ControllerFeature(
                name=feature.name,
                min_supported_version=feature.min_level,
                max_supported_version=feature.max_level,
            )
            for feature in KNOWN_FEATURES
        ),
    )


def decide_register_controller(
    image: MetadataImage, request: RegisterControllerRequest, *, static_voters: frozenset[int] | None = None
) -> ControllerResult:
    """The newest incarnation of a controller replaces an earlier one. An observing controller registers too:
    its registration has its endpoints for when it is made a voter. `static_voters`: at kraft.version 0 the
    only controllers."""
    if image.features.metadata_version < LEVEL_CONTROLLER_REGISTRATION:
        text = (
            "the cluster's metadata.version does not support controller registrations: raise it to "
            "3.7-IV0 or above"
        )
        return ControllerResult(response=ApiError(ErrorCode.UNSUPPORTED_VERSION, text))
    if static_voters is not None and request.controller_id not in static_voters:
        text = (
            f"controller {request.controller_id} is not a voter: correct its node.id or "
            "controller.quorum.voters"
        )
        return ControllerResult(response=ApiError(ErrorCode.INVALID_REQUEST, text), depends_on_image=False)
    if len(request.incarnation_id) != UUID_BYTES or not any(request.incarnation_id):
        text = "the incarnation id is not a uuid: send 16 bytes that are random for each start"
        return ControllerResult(response=ApiError(ErrorCode.INVALID_REQUEST, text), depends_on_image=False)
    known = image.controllers.get(request.controller_id)
    if known is not None and known.incarnation_id == request.incarnation_id:
        return ControllerResult(response=Done())
    return ControllerResult(response=Done(), records=(controller_record(request),))


def controller_record(request: RegisterControllerRequest) -> ControllerRecord:
    return ControllerRecord(
        controller_id=request.controller_id,
        incarnation_id=request.incarnation_id,
        end_points=request.endpoints,
        features=request.features,
    )
