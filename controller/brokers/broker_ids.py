"""Decisions about broker ids (S0): which id a new broker gets, which keys and ids are remembered, which
forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Protocol

from metaquorum.controller.result import ControllerResult
from metaquorum.metadata import broker_ids as ids
from metaquorum.metadata.broker_ids import IdSource
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.node_configs import ControllerConfig
from metaquorum.metadata.records.types import ConfigRecord
from metaquorum.metadata.requests.common import (
    AllocateBrokerIdRequest,
    AllocateBrokerIdResponse,
    BindBrokerIdRequest,
    Done,
    RegisterBrokerRequest,
    UnbindBrokerIdRequest,
)
from metaquorum.storage.uuids import UUID_BYTES

ASK_AGAIN_MS = 250
"""How soon a newcomer that has to wait retries: whether the other process is alive shows between two of its
heartbeats."""

LISTED_MAX = 20
"""Ids that one line names."""

COLLECTED_MAX = 1_000
"""Entries that one collection removes; the next one continues."""


class Presence(Protocol):
    """What only the active controller knows of a broker id, at the request's arrival."""

    @property
    def voters(self) -> Collection[int]:
        """Ids that no broker may have."""

    def lease_ms(self, broker_id: int) -> int:
        """How long a live process may still hold the id without sending a heartbeat; 0 if none does."""

    def heard_since_asked(self, broker_id: int) -> bool:
        """Whether the id's holder sent a heartbeat after this request was first made."""

    def ended_since_asked(self, broker_id: int) -> bool:
        """Whether the id's session was open when this request was first made, and then ended without a
        heartbeat."""

    def claim_ms(self, broker_id: int) -> int:
        """How long the claim on the id is still valid; 0 if there is none, or it has lapsed."""

    def absent_ms(self, broker_id: int) -> int:
        """How long the id has been neither held nor claimed, as far as this controller has seen; 0 if it is
        in use."""


def missing_ids(image: MetadataImage) -> tuple[int, ...]:
    """Ids that partitions name and that are not registered, or fenced (S0.7, S0.16). O(brokers)."""
    brokers = image.brokers
    return tuple(
        sorted(
            broker_id
            for broker_id in image.topics.replica_counts()
            if (known := brokers.get(broker_id)) is None or known.fenced
        )
    )


def decide_allocation(
    image: MetadataImage, request: AllocateBrokerIdRequest, config: ControllerConfig, presence: Presence
) -> ControllerResult:
    """Steps 3 to 5 of S0.1. An allocated id is claimed in the log, in the same batch in which new ids are
    counted: a repeated request gets the same id, also after a failover, and no id is given twice."""
    refusal = _refusal(request, config)
    if refusal is not None:
        return ControllerResult(response=refusal, depends_on_image=False)
    entries = ids.remembered(image)
    claims = ids.claims(entries)
    mine = next((claim for claim in claims.values() if claim.request_id == request.request_id), None)
    if mine is not None:
        return ControllerResult(response=_granted(config, mine.broker_id, mine.source))
    if request.binding_key is not None:
        bound = ids.binding_of(entries, request.binding_key)
        if bound is not None and bound.broker_id is not None and bound.broker_id not in presence.voters:
            answer = _try_bound(bound.broker_id, request, config, presence)
            if answer is not None:
                return answer
    if request.reuse_missing:
        answer = _try_missing(image, request, config, presence)
        if answer is not None:
            return answer
    return _new_id(image, request, config, presence.voters)


def _refusal(request: AllocateBrokerIdRequest, config: ControllerConfig) -> ApiError | None:
    if len(request.request_id) != UUID_BYTES or not any(request.request_id):
        return ApiError(ErrorCode.INVALID_REQUEST, "the request has no request id: send a uuid")
    if request.cluster_id is not None and request.cluster_id != config.cluster_id:
        text = (
            f"the broker's directories belong to cluster {request.cluster_id}, but this is cluster "
            f"{config.cluster_id}: correct its controller.quorum.voters or its log.dirs"
        )
        return ApiError(ErrorCode.INCONSISTENT_CLUSTER_ID, text)
    problem = None if request.binding_key is None else ids.key_problem(request.binding_key)
    return None if problem is None else ApiError(ErrorCode.INVALID_REQUEST, problem)


def _granted(config: ControllerConfig, broker_id: int, source: IdSource) -> AllocateBrokerIdResponse:
    return AllocateBrokerIdResponse(cluster_id=config.cluster_id, broker_id=broker_id, source=source)


def _grant(
    config: ControllerConfig,
    request: AllocateBrokerIdRequest,
    broker_id: int,
    source: IdSource,
    *first: ConfigRecord,
) -> ControllerResult:
    claim = ids.claim_record(broker_id, request.request_id, source)
    return ControllerResult(response=_granted(config, broker_id, source), records=(*first, claim))


def _try_bound(
    broker_id: int, request: AllocateBrokerIdRequest, config: ControllerConfig, presence: Presence
) -> ControllerResult | None:
    """The id that this key is bound to (S0.5). None if it is in use, which takes more than a lease that still
    runs: a host that was killed and comes back at once finds its own lease. Only a holder that sent a
    heartbeat after the newcomer's request is another process (S0.6)."""
    claim_ms, lease_ms = presence.claim_ms(broker_id), presence.lease_ms(broker_id)
    if lease_ms > 0 and presence.heard_since_asked(broker_id):
        return None
    if lease_ms > 0:
        reason = (
            f"id {broker_id} is bound to {request.binding_key}, and its last process may still be alive: "
            f"its session ends in {lease_ms} ms unless it sends a heartbeat"
        )
    elif claim_ms > 0:
        reason = (
            f"id {broker_id} is bound to {request.binding_key} and was given to another process, which has "
            f"{claim_ms} ms left to register"
        )
    else:
        return _grant(config, request, broker_id, IdSource.BINDING)
    response = AllocateBrokerIdResponse(
        cluster_id=config.cluster_id,
        retry_after_ms=min(max(lease_ms, claim_ms), ASK_AGAIN_MS),
        waiting_for=reason,
    )
    return ControllerResult(response=response, depends_on_image=False)


def _try_missing(
    image: MetadataImage, request: AllocateBrokerIdRequest, config: ControllerConfig, presence: Presence
) -> ControllerResult | None:
    """The only id that partitions name and no broker has (S0.8, S0.9), if it has been unused for the grace
    period (S0.22), or its session ended while this request waited for it: a broker that restarts at once
    finds its own. None if there is no such id (S0.10)."""
    named = [
        broker_id
        for broker_id in sorted(image.topics.replica_counts())
        if broker_id not in presence.voters and presence.claim_ms(broker_id) == 0
    ]
    missing = set(missing_ids(image))
    waiting = [
        broker_id
        for broker_id in named
        if not presence.heard_since_asked(broker_id)
        and (presence.lease_ms(broker_id) > 0 or broker_id not in missing)
    ]
    if waiting:
        return _wait_for_sessions(waiting, config, presence)
    absent = [broker_id for broker_id in named if broker_id in missing and presence.lease_ms(broker_id) == 0]
    if len(absent) > 1:
        text = (
            f"partitions name {len(absent)} ids that no broker has ({_listed(absent)}), and "
            "broker.id.reuse.missing needs exactly one: set node.id to this broker's former id, bind its key "
            "to that id (metaquorum brokers bind), or start the other brokers first"
        )
        return ControllerResult(response=ApiError(ErrorCode.INVALID_REGISTRATION, text))
    for broker_id in absent:
        is_free = (
            presence.ended_since_asked(broker_id)
            or presence.absent_ms(broker_id) >= config.broker_id_reuse_grace_ms
        )
        if is_free:
            return _grant(config, request, broker_id, IdSource.MISSING)
    return None


def _wait_for_sessions(
    broker_ids: Sequence[int], config: ControllerConfig, presence: Presence
) -> ControllerResult:
    """Each of these either sends a heartbeat, and is in use, or its session ends, and the id is missing. What
    has ended is waited for until its broker is fenced."""
    longest_ms = max(presence.lease_ms(broker_id) for broker_id in broker_ids)
    response = AllocateBrokerIdResponse(
        cluster_id=config.cluster_id,
        retry_after_ms=min(longest_ms, ASK_AGAIN_MS) or ASK_AGAIN_MS,
        waiting_for=(
            f"one of these ids may be this broker's former one, and their sessions are still open: "
            f"{_listed(broker_ids)}; each sends a heartbeat and is in use, or its session ends within "
            f"{longest_ms} ms"
        ),
    )
    return ControllerResult(response=response, depends_on_image=False)


def _listed(broker_ids: Sequence[int]) -> str:
    listed = ", ".join(str(broker_id) for broker_id in broker_ids[:LISTED_MAX])
    return listed if len(broker_ids) <= LISTED_MAX else f"{listed} and {len(broker_ids) - LISTED_MAX} more"


def _new_id(
    image: MetadataImage,
    request: AllocateBrokerIdRequest,
    config: ControllerConfig,
    voters: Collection[int],
) -> ControllerResult:
    """The lowest id above the reserved ones that is not in use, bound, or used before; counted in the log, so
    that it is never allocated again (S0.10)."""
    entries = ids.remembered(image)
    taken = {*image.brokers, *image.topics.replica_counts(), *voters}
    taken.update(ids.claimed_values(entries))
    taken.update(binding.broker_id for binding in ids.bindings(entries) if binding.broker_id is not None)
    broker_id = max(config.reserved_broker_max_id + 1, ids.next_id(entries))
    while broker_id in taken:
        broker_id += 1
    if broker_id > ids.MAX_BROKER_ID:
        text = f"every id up to {ids.MAX_BROKER_ID} is taken: set node.id to one that is free again"
        return ControllerResult(response=ApiError(ErrorCode.POLICY_VIOLATION, text))
    return _grant(config, request, broker_id, IdSource.NEW, ids.next_id_record(broker_id + 1))


# ---- entries that are added ----------------------------------------------------------------------


def remember_registration(
    image: MetadataImage, request: RegisterBrokerRequest, is_live: Callable[[int], bool]
) -> tuple[ConfigRecord, ...]:
    """The records that a successful registration adds to its own, in the same batch (S0.13): the claim on its
    id is redeemed, and its key bound to the id. If a live broker of another id is bound with the key, the key
    stays with that broker (S0.23)."""
    entries = ids.remembered(image)
    broker_id, key = request.broker_id, request.binding_key
    records: list[ConfigRecord] = []
    if broker_id in ids.claimed_values(entries):
        records.append(ids.claim_record(broker_id, None))
    if key is None:
        return tuple(records)
    bound = ids.binding_of(entries, key)
    other = None if bound is None else bound.broker_id
    if other is not None and other != broker_id and is_live(other):
        return tuple(records)
    if other != broker_id:
        records.append(ids.binding_record(key, broker_id))
    if ids.current_key(entries, broker_id) != key:
        records.append(ids.current_key_record(broker_id, key))
    return tuple(records)


def decide_bind(
    image: MetadataImage, request: BindBrokerIdRequest, voters: Collection[int]
) -> ControllerResult:
    """Binds a key by hand (S0.15), for a replacement machine of another name. The id's other keys are unbound
    in the same batch: collection could not know which one is meant."""
    problem = ids.key_problem(request.key)
    if problem is not None:
        return ControllerResult(response=ApiError(ErrorCode.INVALID_REQUEST, problem), depends_on_image=False)
    if not 0 <= request.broker_id <= ids.MAX_BROKER_ID or request.broker_id in voters:
        text = (
            f"{request.broker_id} cannot be a broker's id: give one from 0 to {ids.MAX_BROKER_ID} that no "
            "controller has"
        )
        return ControllerResult(response=ApiError(ErrorCode.INVALID_REQUEST, text), depends_on_image=False)
    entries = ids.remembered(image)
    records = [
        ids.binding_record(binding.key, None)
        for binding in ids.bindings(entries)
        if binding.broker_id == request.broker_id and binding.key != request.key
    ]
    bound = ids.binding_of(entries, request.key)
    if bound is None or bound.broker_id != request.broker_id:
        records.append(ids.binding_record(request.key, request.broker_id))
    return ControllerResult(response=Done(), records=tuple(records))


def decide_unbind(image: MetadataImage, request: UnbindBrokerIdRequest) -> ControllerResult:
    """Removes a binding, whatever its form."""
    if ids.binding_of(ids.remembered(image), request.key) is None:
        text = f"no id is bound to {request.key}: list the bindings with metaquorum brokers bindings"
        return ControllerResult(response=ApiError(ErrorCode.RESOURCE_NOT_FOUND, text))
    return ControllerResult(response=Done(), records=(ids.binding_record(request.key, None),))


# ---- entries that are removed --------------------------------------------------------------------


def garbage_bindings(image: MetadataImage) -> list[ids.Binding]:
    """Bindings of other keys to the id of a broker that runs and is bound with the key that it registered
    with (S0.18). Without that binding, or while the broker is down and may be moving to another host, nothing
    is garbage; nor are entries of a newer release."""
    entries = ids.remembered(image)
    current = ids.current_keys(entries)
    garbage = []
    for binding in ids.bindings(entries):
        broker_id = binding.broker_id
        if broker_id is None or binding.version != ids.VALUE_VERSION:
            continue
        known, key = image.brokers.get(broker_id), current.get(broker_id)
        if known is None or known.fenced or key is None or key == binding.key:
            continue
        home = ids.binding_of(entries, key)
        if home is not None and home.broker_id == broker_id:
            garbage.append(binding)
    return garbage


def collect(image: MetadataImage, lapsed_claims: Iterable[int]) -> tuple[ConfigRecord, ...]:
    """One bounded batch that removes garbage bindings, keys of ids that are no longer registered, and claims
    that lapsed (S0.18). Empty if there are none, so repeating it changes nothing (S0.19)."""
    entries = ids.remembered(image)
    claimed = ids.claimed_values(entries)
    records = [ids.binding_record(binding.key, None) for binding in garbage_bindings(image)]
    records += [
        ids.current_key_record(broker_id, None)
        for broker_id in ids.current_keys(entries)
        if broker_id not in image.brokers
    ]
    records += [ids.claim_record(broker_id, None) for broker_id in lapsed_claims if broker_id in claimed]
    return tuple(records[:COLLECTED_MAX])
