"""Work of the active controller that is longer than one batch: done in slices, each valid alone.

Owns what is to be done and how the next slice of it looks on the newest image. Soft state: a new active
controller finds what was interrupted in the image (a broker still unfenced gets a fresh session, one in
controlled shutdown heartbeats on and so does one with dead directories, leaderless partitions are looked
for once, and so are eligible leaders that are left from before the feature was switched off).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import assert_never

from metaquorum.controller.brokers.brokers import directories_record, fence_record, unregister_record
from metaquorum.controller.events import RequestArrived
from metaquorum.controller.partitions.columns.scan import Scan, counting_on, listing_rare, lying_in, naming
from metaquorum.controller.partitions.effective import elr_enabled
from metaquorum.controller.partitions.partition_change import Rules
from metaquorum.controller.partitions.partitions import (
    election_slice,
    failed_directories_slice,
    forgetting_slice,
    leads_any,
    preferred_slice,
    removal_slice,
)
from metaquorum.controller.result import Slice
from metaquorum.metadata.image import BrokerRegistration, MetadataImage

ELECTIONS_PER_IMBALANCE_MAX = 1_000
"""Preferred leaders elected in one batch of the balancer (K17's MAX_ELECTIONS_PER_IMBALANCE)."""


@dataclass(slots=True, kw_only=True)
class RemoveBroker:
    """Take a broker out of leaderships and ISRs, then fence it or remove its registration.

    `parked`: requests to be decided when it is done (a new incarnation registers after the old one failed).
    `unregister_keys`: requests that the last batch answers.
    `unclean`: what it had may be lost, so that it is no eligible leader any more either (K8, KIP-966).
    `told_ms`: when the other brokers were last told of a slice; at first, when the work began.
    """

    broker_id: int
    epoch: int
    unregister: bool = False
    unregister_keys: list[int] = field(default_factory=list)
    parked: list[RequestArrived] = field(default_factory=list)
    unclean: bool = field(init=False, default=False)
    told_ms: int | None = field(init=False, default=None)
    scan: Scan = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        self.scan = Scan(naming(self.broker_id))

    def make_unclean(self) -> None:
        """From the next slice on, and for what was done already too."""
        if not self.unclean:
            self.unclean = True
            self.scan = Scan(counting_on(self.broker_id))


@dataclass(slots=True, kw_only=True)
class MoveLeaders:
    """Take a broker in controlled shutdown out of leaderships and ISRs."""

    broker_id: int
    epoch: int
    scan: Scan = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        self.scan = Scan(naming(self.broker_id))


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectLeaders:
    """Give leaderless partitions a leader: those with `broker_id` in sync, or all (None)."""

    broker_id: int | None


@dataclass(slots=True, kw_only=True)
class FailDirectories:
    """Take a broker's replicas in dead directories out of leaderships and ISRs, then say in its registration
    which directories are left."""

    broker_id: int
    epoch: int
    directories: frozenset[bytes]
    scan: Scan | None = field(init=False, default=None, compare=False, repr=False)

    def add(self, directories: frozenset[bytes]) -> None:
        """More of them died: what was looked at for the others is looked at again."""
        self.directories |= directories
        self.scan = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BalanceLeaders:
    """Give partitions back to their preferred leaders, as far as these may lead."""

    broker_id: None = None


@dataclass(slots=True, kw_only=True)
class ForgetEligible:
    """Take the eligible leader replicas out of partitions after the feature was switched off."""

    broker_id: None = None
    scan: Scan = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        self.scan = Scan(listing_rare)


Work = RemoveBroker | MoveLeaders | ElectLeaders | FailDirectories | BalanceLeaders | ForgetEligible


def next_slice(work: Work, image: MetadataImage, rules: Rules, at_most: int) -> Slice:  # noqa: C901, PLR0911, PLR0912
    """The next batch of `work` on `image`; an empty one that is done where there is nothing left to do."""
    match work:
        case RemoveBroker(broker_id=broker_id, epoch=epoch):
            known = _registered(image, broker_id, epoch)
            if known is None:
                return Slice(records=(), done=True)
            goes_on = work.unregister or work.unclean or not known.fenced or leads_any(image, broker_id)
            if not goes_on:
                return Slice(records=(), done=True)
            final = None if known.fenced else fence_record(broker_id, epoch)
            if work.unregister:
                work.make_unclean()
                final = unregister_record(broker_id, epoch)
            return removal_slice(
                image, broker_id, rules, at_most, final=final, scan=work.scan, unclean=work.unclean
            )
        case MoveLeaders(broker_id=broker_id, epoch=epoch):
            known = _registered(image, broker_id, epoch)
            if known is None or known.fenced or not known.in_controlled_shutdown:
                return Slice(records=(), done=True)
            return removal_slice(image, broker_id, rules, at_most, scan=work.scan)
        case ElectLeaders(broker_id=broker_id):
            return election_slice(image, broker_id, rules, at_most)
        case FailDirectories(broker_id=broker_id, epoch=epoch):
            known = _registered(image, broker_id, epoch)
            dead = [] if known is None else [each for each in known.directories if each in work.directories]
            if known is None or not dead:
                return Slice(records=(), done=True)
            left = tuple([each for each in known.directories if each not in work.directories])
            if not left:
                return Slice(records=(), done=True)  # re-registered meanwhile: its heartbeat fences it
            if work.scan is None:
                work.scan = Scan(lying_in(image, broker_id, dead))
            return failed_directories_slice(
                image,
                broker_id,
                dead,
                rules,
                at_most,
                final=directories_record(broker_id, epoch, left),
                scan=work.scan,
            )
        case ForgetEligible():
            if elr_enabled(image):
                return Slice(records=(), done=True)
            return forgetting_slice(image, rules, at_most, scan=work.scan)
        case BalanceLeaders():
            return preferred_slice(image, rules, min(at_most, ELECTIONS_PER_IMBALANCE_MAX))
        case _:
            assert_never(work)


def _registered(image: MetadataImage, broker_id: int, epoch: int) -> BrokerRegistration | None:
    known = image.brokers.get(broker_id)
    return None if known is None or known.epoch != epoch else known
