"""What a change of one partition was, by Kafka's own rules: an unclean election, a step of a reassignment.

The one place that decides it, for the terminal's tools and for the pipeline's tables.
"""

from __future__ import annotations

from metaquorum.metadata.image.types import NO_LEADER, RECOVERED, RECOVERING, PartitionInfo


def was_unclean(before: PartitionInfo, after: PartitionInfo) -> bool:
    """Whether the new leader was not a candidate: neither in the ISR before the change nor eligible (KIP-106,
    KIP-704, KIP-966). An election of the last known leader is one.

    An unclean election leaves the leader alone in the ISR. From metadata.version 3.2-IV0 on it also marks the
    partition as recovering, even if the leader was in the ISR (with a directory that is gone). A record that
    completes a reassignment may elect a replica that joins the ISR with it: that one has caught up.
    """
    if after.leader in (NO_LEADER, before.leader):
        return False
    if (before.leader_recovery_state, after.leader_recovery_state) == (RECOVERED, RECOVERING):
        return True
    if after.leader in before.isr or after.leader in before.elr:
        return False
    caught_up = after.leader in before.adding and reassignment(before, after) == "reassignment-completed"
    return after.isr == (after.leader,) and not (caught_up and after.leader_recovery_state == RECOVERED)


def is_last_known(before: PartitionInfo, leader: int) -> bool:
    """Whether a controller with eligible leaders elects this one regardless of the setting."""
    return not before.isr and not before.elr and before.last_known_elr == (leader,)


def reassignment(before: PartitionInfo, after: PartitionInfo) -> str | None:
    """The rule of a reassignment (KIP-455) that a change matches; None if there is none."""
    moving, was_moving = bool(after.adding or after.removing), bool(before.adding or before.removing)
    same = (before.adding, before.removing) == (after.adding, after.removing)
    match was_moving, moving:
        case False, True:
            return "reassignment-started"
        case True, True:
            return None if same else "reassignment-changed"
        case True, False:
            if set(after.replicas) == set(before.replicas) - set(before.removing):
                return "reassignment-completed"
            back = set(after.replicas) == set(before.replicas) - set(before.adding)
            return "reassignment-cancelled" if back else "reassignment-changed"
    return None if before.replicas == after.replicas else "replicas-changed"
