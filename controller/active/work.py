"""Work of the active controller that is longer than one batch: done in slices, each valid alone.

Soft state: a new active controller finds interrupted work in the image. A broker that is still unfenced gets
a new session; a broker in controlled shutdown or with dead directories keeps sending heartbeats; and
leaderless partitions, and eligible leaders left from before the feature was switched off, are searched for
once.
"""

from __future__ import annotations

from typing import assert_never

import msgspec
from msgspec.structs import replace

from metaquorum.controller.brokers.brokers import directories_record, fence_record, unregister_record
from metaquorum.controller.events import RequestArrived
from metaquorum.controller.partitions.partition_change import Rules
from metaquorum.controller.partitions.partitions import (
    Scan,
    counting_on,
    election_slice,
    failed_directories_slice,
    forgetting_slice,
    leads_any,
    listing_rare,
    lying_in,
    naming,
    preferred_slice,
    removal_slice,
)
from metaquorum.controller.partitions.rules import elr_enabled
from metaquorum.controller.result import Slice
from metaquorum.metadata.image import BrokerRegistration, MetadataImage

ELECTIONS_PER_IMBALANCE_MAX = 1_000
"""Preferred leaders elected in one batch of the balancer (MAX_ELECTIONS_PER_IMBALANCE)."""


BROKER_REPORT_MS = 100
"""While a broker is being removed in slices, committed slices are reported to the others this often, and
after the last slice: hundreds of answers for each slice would take longer than the slices."""


class RemoveBroker(msgspec.Struct, frozen=True, kw_only=True):
    """Take a broker out of leaderships and ISRs, then fence it or remove its registration.

    `parked`: registrations to decide when it is done (a new incarnation starts after the old one failed).
    `unregister_keys`: requests that the last batch answers. `unclean`: its data may be lost, so that it is no
    longer an eligible leader either (K8, KIP-966). `reported_ms`: when a slice was last reported to the other
    brokers; at first, when the work began.
    """

    broker_id: int
    epoch: int
    unregister: bool = False
    unregister_keys: tuple[int, ...] = ()
    parked: tuple[RequestArrived, ...] = ()
    unclean: bool = False
    reported_ms: int | None = None

    @property
    def from_eligible(self) -> bool:
        """Whether it is also removed from the eligible leaders."""
        return self.unclean or self.unregister

    def after_batch(self, now_ms: int, *, is_last: bool) -> tuple[RemoveBroker, bool]:
        """The work after one more batch is written, and whether that is reported to the other brokers at
        once."""
        reported_ms = now_ms if self.reported_ms is None else self.reported_ms
        reports = is_last or now_ms - reported_ms >= BROKER_REPORT_MS
        return replace(self, reported_ms=now_ms if reports else reported_ms), reports


class MoveLeaders(msgspec.Struct, frozen=True, kw_only=True):
    """Take a broker in controlled shutdown out of leaderships and ISRs."""

    broker_id: int
    epoch: int


class ElectLeaders(msgspec.Struct, frozen=True, kw_only=True):
    """Give leaderless partitions a leader: those with `broker_id` in sync, or all (None)."""

    broker_id: int | None


class FailDirectories(msgspec.Struct, frozen=True, kw_only=True):
    """Take a broker's replicas in dead directories out of leaderships and ISRs, then list the remaining
    directories in its registration."""

    broker_id: int
    epoch: int
    directories: frozenset[bytes]


class BalanceLeaders(msgspec.Struct, frozen=True, kw_only=True):
    """Return partitions to their preferred leaders where these may lead."""

    broker_id: None = None


class ForgetEligible(msgspec.Struct, frozen=True, kw_only=True):
    """Take the eligible leader replicas out of partitions after the feature was switched off."""

    broker_id: None = None


Work = RemoveBroker | MoveLeaders | ElectLeaders | FailDirectories | BalanceLeaders | ForgetEligible

WorkKey = tuple[type[Work], int | None]


def key_of(work: Work) -> WorkKey:
    """There is at most one piece of work of a kind per broker."""
    return type(work), work.broker_id


class Scans:
    """What the slices of each piece of work have found settled. A cache: without it a slice looks at every
    chunk again, with the same result."""

    def __init__(self) -> None:
        self._kept: dict[WorkKey, tuple[object, Scan]] = {}

    def of(self, work: Work, image: MetadataImage) -> Scan | None:
        """The scan for the next slice; None: this kind of work has none."""
        sought: object
        match work:
            case RemoveBroker(broker_id=broker_id, from_eligible=from_eligible):
                sought, find = from_eligible, counting_on(broker_id) if from_eligible else naming(broker_id)
            case MoveLeaders(broker_id=broker_id):
                sought, find = None, naming(broker_id)
            case FailDirectories(broker_id=broker_id, epoch=epoch):
                known = _registered(image, broker_id, epoch)
                dead = frozenset[bytes]() if known is None else work.directories & {*known.directories}
                sought, find = dead, lying_in(image, broker_id, dead)
            case ForgetEligible():
                sought, find = None, listing_rare
            case ElectLeaders() | BalanceLeaders():
                return None
            case _:
                assert_never(work)
        kept = self._kept.get(key_of(work))
        if kept is None or kept[0] != sought:
            kept = self._kept[key_of(work)] = sought, Scan(find)
        return kept[1]

    def forget(self, key: WorkKey) -> None:
        """The work has ended."""
        self._kept.pop(key, None)


def next_slice(
    work: Work, image: MetadataImage, rules: Rules, at_most: int, *, scan: Scan | None = None
) -> Slice:
    """The next batch of `work` on `image`; empty and done if there is nothing left to do."""
    match work:
        case RemoveBroker():
            return _removing_slice(work, image, rules, at_most, scan)
        case MoveLeaders(broker_id=broker_id, epoch=epoch):
            known = _registered(image, broker_id, epoch)
            if known is None or known.fenced or not known.in_controlled_shutdown:
                return Slice(records=(), done=True)
            return removal_slice(image, broker_id, rules, at_most, scan=scan)
        case ElectLeaders(broker_id=broker_id):
            return election_slice(image, broker_id, rules, at_most)
        case FailDirectories():
            return _failing_slice(work, image, rules, at_most, scan)
        case ForgetEligible():
            if elr_enabled(image):
                return Slice(records=(), done=True)
            return forgetting_slice(image, rules, at_most, scan=scan)
        case BalanceLeaders():
            return preferred_slice(image, rules, min(at_most, ELECTIONS_PER_IMBALANCE_MAX))
        case _:
            assert_never(work)


def _removing_slice(
    work: RemoveBroker, image: MetadataImage, rules: Rules, at_most: int, scan: Scan | None
) -> Slice:
    broker_id, epoch, unclean = work.broker_id, work.epoch, work.from_eligible
    known = _registered(image, broker_id, epoch)
    if known is None or not (unclean or not known.fenced or leads_any(image, broker_id)):
        return Slice(records=(), done=True)
    final = None if known.fenced else fence_record(broker_id, epoch)
    if work.unregister:
        final = unregister_record(broker_id, epoch)
    return removal_slice(image, broker_id, rules, at_most, final=final, scan=scan, unclean=unclean)


def _failing_slice(
    work: FailDirectories, image: MetadataImage, rules: Rules, at_most: int, scan: Scan | None
) -> Slice:
    registration = _registered(image, work.broker_id, work.epoch)
    dead = (
        []
        if registration is None
        else [lost for lost in registration.directories if lost in work.directories]
    )
    if registration is None or not dead:
        return Slice(records=(), done=True)
    left = tuple([directory for directory in registration.directories if directory not in work.directories])
    if not left:
        return Slice(records=(), done=True)  # re-registered meanwhile: its heartbeat fences it
    final = directories_record(work.broker_id, work.epoch, left)
    return failed_directories_slice(image, work.broker_id, dead, rules, at_most, final=final, scan=scan)


def _registered(image: MetadataImage, broker_id: int, epoch: int) -> BrokerRegistration | None:
    known = image.brokers.get(broker_id)
    return None if known is None or known.epoch != epoch else known
