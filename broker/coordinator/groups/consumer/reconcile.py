"""One step of a member from what it has towards its target (KIP-848).

Owns that step, for one member. Knows no timers and no answers. A member first gives up what is not in its
target, then takes what others have given up; it is in the target's epoch as soon as it has nothing left to
give up. So no partition ever has two owners.
"""

from __future__ import annotations

from msgspec.structs import replace

from metaquorum.broker.coordinator.groups.consumer.assignors import Parts
from metaquorum.broker.coordinator.groups.consumer.group import (
    ConsumerGroup,
    ConsumerMember,
    MemberState,
    flat,
    gathered,
)


def reconciled(group: ConsumerGroup, member: ConsumerMember, owned: Parts | None) -> ConsumerMember:
    """The member after this heartbeat. `owned`: what it reports to own; None: it does not report it, and has
    what it had."""
    if member.state is MemberState.STABLE and member.epoch == group.target_epoch:
        return member
    if member.state is MemberState.UNREVOKED and _still_has(member.revoking, owned):
        return member
    target = set(flat(group.targets.get(member.member_id, {})))
    assigned = set(flat(member.assigned))
    kept, leaving = assigned & target, assigned - target
    if leaving and _still_has(gathered(leaving), owned):
        return replace(
            member, state=MemberState.UNREVOKED, assigned=gathered(kept), revoking=gathered(leaving)
        )
    missing = target - kept
    taken = missing & group.owned_by_others(member.member_id)
    epoch = group.target_epoch
    return replace(
        member,
        epoch=epoch,
        previous_epoch=member.previous_epoch if member.epoch == epoch else member.epoch,
        state=MemberState.UNRELEASED if taken else MemberState.STABLE,
        assigned=gathered(kept | (missing - taken)),
        revoking={},
    )


def _still_has(parts: Parts, owned: Parts | None) -> bool:
    return owned is None or any(owned.get(topic, frozenset()) & indexes for topic, indexes in parts.items())
