"""Decisions about one broker: registration, its state, its failure, its return (K7-K10, S2.37)."""

from __future__ import annotations

from collections.abc import Iterable

from metaquorum.controller.features import (
    LEVEL_CONTROLLED_SHUTDOWN,
    LEVEL_CONTROLLER_REGISTRATION,
    unsupported_feature,
)
from metaquorum.controller.partitions.partitions import eligible_anywhere
from metaquorum.controller.partitions.rules import elr_enabled
from metaquorum.controller.result import ControllerResult
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.features import KNOWN_FEATURES, LEVEL_DIRECTORIES
from metaquorum.metadata.image import BrokerRegistration, BrokersImage, MetadataImage
from metaquorum.metadata.node_configs import ControllerConfig
from metaquorum.metadata.records import types as records
from metaquorum.metadata.requests.common import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    Done,
    RegisterBrokerRequest,
    RegisterBrokerResponse,
)
from metaquorum.metadata.requests.settings import RegisterControllerRequest
from metaquorum.metadata.requests.status import BrokerControlState
from metaquorum.storage.uuids import UUID_BYTES, is_reserved_directory, uuid_to_text

SECURITY_PROTOCOLS = range(4)
"""Kafka's ids: PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL."""


def broker_state(
    brokers: BrokersImage, broker_id: int, *, fencing: bool, should_shut_down: bool
) -> BrokerControlState:
    """The state of a broker: from the log, and two facts that only the active controller knows."""
    registration = brokers.get(broker_id)
    if registration is None:
        return BrokerControlState.UNREGISTERED
    if registration.fenced or fencing:
        return BrokerControlState.SHUTDOWN if should_shut_down else BrokerControlState.FENCED
    return (
        BrokerControlState.CONTROLLED_SHUTDOWN
        if registration.in_controlled_shutdown
        else BrokerControlState.ACTIVE
    )


def decide_registration(
    image: MetadataImage,
    request: RegisterBrokerRequest,
    *,
    cluster_id: str,
    next_offset: int,
    session_remaining_ms: int,
    session_timeout_ms: int,
    kraft_version: int,
) -> ControllerResult:
    """A new incarnation gets a new epoch, the offset that its record will have; the same one keeps epoch and
    fencing (K8). It is not leaving: a broker that wants to stop says so in its heartbeats, and no other
    record takes a controlled shutdown back. `session_remaining_ms` is the rest of the lease of the registered
    incarnation, `kraft_version` the quorum's level.

    Precondition for a new incarnation: no partition names the earlier one (see `must_fence_first`).
    """
    broker_id = request.broker_id
    refusal = _refusal(image, request, cluster_id, session_remaining_ms, kraft_version)
    if refusal is not None:
        return refusal
    registered = image.brokers.get(broker_id)
    amends = registered is not None and registered.incarnation_id == request.incarnation_id
    epoch = registered.epoch if registered is not None and amends else next_offset
    says_directories = image.features.metadata_version >= LEVEL_DIRECTORIES
    record = records.BrokerRecord(
        broker_id=broker_id,
        incarnation_id=request.incarnation_id,
        broker_epoch=epoch,
        end_points=request.endpoints,
        features=request.features,
        rack=request.rack,
        fenced=registered.fenced if registered is not None and amends else True,
        in_controlled_shutdown=False,
        log_dirs=tuple(sorted(request.directories)) if says_directories else (),
    )
    response = RegisterBrokerResponse(broker_epoch=epoch, session_timeout_ms=session_timeout_ms)
    if registered is not None and amends and says_the_same(registered, record):
        return ControllerResult(response=response, depends_on_broker=broker_id)
    return ControllerResult(response=response, records=(record,))


def must_fence_first(image: MetadataImage, request: RegisterBrokerRequest) -> bool:
    """The earlier incarnation is not fenced in the log: it failed first, then the new one starts (S1.16).

    The same holds for one that registers again with fewer directories than its partitions may be in: its
    record would leave leaders in a directory that no broker has. Once fenced, it gets its partitions back as
    it may lead them.
    """
    known = image.brokers.get(request.broker_id)
    if known is None or known.fenced:
        return False
    return known.incarnation_id != request.incarnation_id or not set(known.directories) <= set(
        request.directories
    )


def must_drop_first(image: MetadataImage, request: RegisterBrokerRequest) -> bool:
    """The earlier incarnation may have lost its data, and partitions count on it (K8, KIP-966): it leaves
    every ISR and the eligible leaders first. The epoch of that incarnation proves that it stopped cleanly."""
    known = image.brokers.get(request.broker_id)
    if known is None or known.incarnation_id == request.incarnation_id or not elr_enabled(image):
        return False
    if request.previous_broker_epoch == known.epoch:
        return False
    in_sync = bool(image.topics.rows_with_isr(request.broker_id).size)
    return in_sync or eligible_anywhere(image, request.broker_id)


def refuses_registration(
    image: MetadataImage,
    request: RegisterBrokerRequest,
    *,
    cluster_id: str,
    session_remaining_ms: int,
    kraft_version: int,
) -> bool:
    """Whether `decide_registration` would refuse."""
    return _refusal(image, request, cluster_id, session_remaining_ms, kraft_version) is not None


def _refusal(
    image: MetadataImage,
    request: RegisterBrokerRequest,
    cluster_id: str,
    session_remaining_ms: int,
    kraft_version: int,
) -> ControllerResult | None:
    broker_id = request.broker_id
    if request.cluster_id != cluster_id:
        text = (
            f"broker {broker_id} belongs to cluster {request.cluster_id}, but this is cluster "
            f"{cluster_id}: correct its controller.quorum.voters, or format its directories for this "
            "cluster"
        )
        return ControllerResult(
            response=ApiError(ErrorCode.INCONSISTENT_CLUSTER_ID, text), depends_on_image=False
        )
    known = image.brokers.get(broker_id)
    if known is not None and known.incarnation_id != request.incarnation_id and session_remaining_ms > 0:
        text = (
            f"broker id {broker_id} belongs to another live process, whose session lasts another "
            f"{session_remaining_ms} ms: stop that process, retry after that time, or use another id"
        )
        error = ApiError(ErrorCode.DUPLICATE_BROKER_REGISTRATION, text)
        return ControllerResult(response=error, depends_on_broker=broker_id)
    problem = _protocol_problem(request.endpoints) or _directories_problem(image, request)
    if problem is not None:
        return ControllerResult(response=ApiError(ErrorCode.INVALID_REGISTRATION, problem))
    unsupported = unsupported_feature(image.features, request.features, kraft_version=kraft_version)
    if unsupported is not None:
        return ControllerResult(response=ApiError(ErrorCode.UNSUPPORTED_VERSION, unsupported))
    return None


def _protocol_problem(endpoints: Iterable[records.BrokerEndpoint | records.ControllerEndpoint]) -> str | None:
    """No node could read a record with a protocol that does not exist."""
    for each in endpoints:
        if each.security_protocol not in SECURITY_PROTOCOLS:
            return (
                f"listener {each.name} has the security protocol {each.security_protocol}: send 0 PLAINTEXT, "
                "1 SSL, 2 SASL_PLAINTEXT or 3 SASL_SSL"
            )
    return None


def _directories_problem(image: MetadataImage, request: RegisterBrokerRequest) -> str | None:
    if len(request.incarnation_id) != UUID_BYTES or not any(request.incarnation_id):
        return f"broker {request.broker_id} sent no incarnation id: send a uuid that is random for each start"
    if not request.endpoints:
        return f"broker {request.broker_id} sent no listener: configure at least one"
    if not request.directories:
        return f"broker {request.broker_id} sent no log directory: give it at least one that is formatted"
    seen: set[bytes] = set()
    for directory in request.directories:
        if len(directory) != UUID_BYTES or is_reserved_directory(directory):
            return f"directory id {directory.hex()} is reserved: format the directory again to give it an id"
        if directory in seen:
            return (
                f"directory id {uuid_to_text(directory)} is named twice: one directory is a copy, remove it"
            )
        seen.add(directory)
    for other_id, other in image.brokers.items():
        if other_id != request.broker_id and not seen.isdisjoint(other.directories):
            taken = next(directory for directory in other.directories if directory in seen)
            return (
                f"directory id {uuid_to_text(taken)} belongs to broker {other_id}: it was copied from there; "
                f"remove the copy, or unregister broker {other_id} if it is gone"
            )
    return None


def says_the_same(registration: BrokerRegistration, record: records.BrokerRecord) -> bool:
    """Whether `record` would leave the registration unchanged; the image lists things by name."""
    return (
        registration.in_controlled_shutdown == record.in_controlled_shutdown
        and sorted(
            (endpoint.name, endpoint.host, endpoint.port, endpoint.security_protocol)
            for endpoint in registration.endpoints
        )
        == sorted(
            (endpoint.name, endpoint.host, endpoint.port, endpoint.security_protocol)
            for endpoint in record.end_points
        )
        and sorted((f.name, f.min_supported_version, f.max_supported_version) for f in registration.features)
        == sorted((f.name, f.min_supported_version, f.max_supported_version) for f in record.features)
        and registration.rack == record.rack
        and tuple(registration.directories) == record.log_dirs
    )


def heartbeat_response(
    state: BrokerControlState, caught_up: bool, session_timeout_ms: int
) -> BrokerHeartbeatResponse:
    """The heartbeat response to a broker in `state`."""
    return BrokerHeartbeatResponse(
        is_caught_up=caught_up,
        is_fenced=state in {BrokerControlState.FENCED, BrokerControlState.SHUTDOWN},
        should_shut_down=state is BrokerControlState.SHUTDOWN,
        in_controlled_shutdown=state is BrokerControlState.CONTROLLED_SHUTDOWN,
        session_timeout_ms=session_timeout_ms,
    )


def is_caught_up(brokers: BrokersImage, request: BrokerHeartbeatRequest) -> bool:
    """Whether the broker has applied its own registration record (K10); offsets applied are exclusive."""
    offset = brokers.registration_offset(request.broker_id)
    return offset is not None and request.applied_offset > offset


def fence_record(broker_id: int, epoch: int) -> records.Record:
    return records.FenceBrokerRecord(id=broker_id, epoch=epoch)


def unfence_record(broker_id: int, epoch: int) -> records.Record:
    return records.UnfenceBrokerRecord(id=broker_id, epoch=epoch)


def unregister_record(broker_id: int, epoch: int) -> records.Record:
    return records.UnregisterBrokerRecord(broker_id=broker_id, broker_epoch=epoch)


def directories_record(broker_id: int, epoch: int, online: tuple[bytes, ...]) -> records.Record:
    """The remaining directories (KIP-858); at least one, a broker without any is fenced instead."""
    return records.BrokerRegistrationChangeRecord(broker_id=broker_id, broker_epoch=epoch, log_dirs=online)


def shutdown_record(broker_id: int, epoch: int) -> records.Record:
    return records.BrokerRegistrationChangeRecord(
        broker_id=broker_id, broker_epoch=epoch, in_controlled_shutdown=records.IN_CONTROLLED_SHUTDOWN
    )


def knows_controlled_shutdown(image: MetadataImage) -> bool:
    """Below metadata.version 3.3-IV3 the log cannot record it: such a broker is fenced at once instead."""
    return image.features.metadata_version >= LEVEL_CONTROLLED_SHUTDOWN


# Registrations of controllers (KIP-919): their identity and the feature levels that they support.


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
            records.ControllerFeature(
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
    problem = _protocol_problem(request.endpoints)
    if problem is not None:
        return ControllerResult(response=ApiError(ErrorCode.INVALID_REQUEST, problem), depends_on_image=False)
    known = image.controllers.get(request.controller_id)
    if known is not None and known.incarnation_id == request.incarnation_id:
        return ControllerResult(response=Done())
    return ControllerResult(response=Done(), records=(controller_record(request),))


def controller_record(request: RegisterControllerRequest) -> records.ControllerRecord:
    return records.ControllerRecord(
        controller_id=request.controller_id,
        incarnation_id=request.incarnation_id,
        end_points=request.endpoints,
        features=request.features,
    )
