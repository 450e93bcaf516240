"""The rules of causes (`log why --rules`): those derived from records, and the controller's own reasons.

Owns their names and the line that explains each. Does not apply them: `causes` and its neighbors do.
"""

from __future__ import annotations

RULES: dict[str, str] = {
    "created": "the record creates it",
    "deleted": "a RemoveTopicRecord removes the topic with its partitions and settings",
    "broker-fenced": (
        "the same batch, an earlier one, or one up to a second later fences the broker (a fence of "
        "many partitions takes several batches; the last one has the broker's own record)"
    ),
    "broker-restarted": "the same batch registers a new incarnation of the broker",
    "controlled-shutdown": "the same batch, or an earlier one, puts the broker in controlled shutdown",
    "directory-failed": (
        "the same batch, or an earlier one, removes the replica's log directory from the broker's "
        "registration"
    ),
    "broker-unregistered": "the same batch removes the broker's registration, or the broker has none",
    "replica-lagged": "a replica left the ISR while its broker was active and the leader stayed",
    "lagged-or-stopping": (
        "the same below metadata.version 3.3-IV3, which does not record controlled shutdowns: the log "
        "does not show which"
    ),
    "stopping-or-fenced": (
        "an active broker lost the leadership below metadata.version 3.3-IV3: the log does not show "
        "whether it was stopping or being fenced"
    ),
    "replica-caught-up": "a replica joined the ISR",
    "no-eligible-leader": "no member of the ISR is active, and there was no unclean election",
    "elected-from-isr": "the new leader was in the ISR",
    "elected-from-elr": "the new leader was an eligible leader replica (KIP-966)",
    "broker-returned": (
        "the partition had no leader, and the new leader's broker was unfenced in the same batch or "
        "up to a second before"
    ),
    "led-again": (
        "the partition had no leader, and the new leader's broker was active all the time: someone "
        "requested an election, or a new controller held one; the log does not show which"
    ),
    "unclean-election": (
        "the new leader was neither in the ISR nor eligible: records may be lost. The last known leader is "
        "elected whatever the setting is, when no one is left (KIP-966). If else a broker's state "
        "changed in the same batch, the setting allowed it; otherwise the log does not distinguish that "
        "from a request"
    ),
    "recovery-finished": "the leader of an unclean election finished recovering the partition (KIP-704)",
    "preferred-election": (
        "the first replica became the leader while the old leader was active: leaders were balanced, "
        "or someone requested the election"
    ),
    "reassignment-started": "replicas start to be added or removed",
    "reassignment-changed": (
        "an ongoing reassignment got another target, or ended with other replicas than planned"
    ),
    "reassignment-completed": "a reassignment ended without the replicas that were being removed",
    "reassignment-cancelled": (
        "a reassignment ended without the replicas that were being added: it was cancelled, or the "
        "replicas were assigned back"
    ),
    "replicas-changed": "the replica list changed in one step, with nothing to copy",
    "directory-assigned": "a broker reported which log directory holds a replica",
    "directory-moved": "a replica is in another log directory: it was moved, or recreated there",
    "replica-damaged": "a broker reported the log of its replica as damaged",
    "replica-whole": "a broker reported that the damaged log of its replica is intact again",
    "replica-given-up": "a broker gave up the damaged log of its replica, to recreate it",
    "leader-epoch-raised": "the record names the current leader again, which raises the leader epoch",
    "eligible-leaders-changed": "the eligible leader replicas, or the last known leader, changed (KIP-966)",
    "registered": "the broker registered and had no registration before",
    "registered-again": "the same incarnation of the broker registered again",
    "session-expired": (
        "the broker was fenced while it led partitions, which a clean shutdown never does: no "
        "heartbeat arrived in time (or, in this project, the broker could not continue)"
    ),
    "stopped-idle": (
        "the broker was fenced while it led nothing, less than the default session timeout (9 s) "
        "after its last sign of life: a clean shutdown"
    ),
    "stopped-or-silent": (
        "the same, but later: a clean shutdown, or no heartbeat in time; the log does not show which"
    ),
    "shutdown-finished": (
        "the broker was fenced in its controlled shutdown while it led nothing, less than the default "
        "session timeout (9 s) after it began"
    ),
    "caught-up": "the broker was unfenced: it sent heartbeats and had read the log up to its registration",
    "leader-elected": "a majority of the voters voted for the controller",
    "leader-resigned": (
        "the previous leader wrote its last record less than the default fetch timeout (2 s) before "
        "the election"
    ),
    "leader-lost": (
        "the previous leader was silent for longer and did not vote for its successor: it failed, was "
        "cut off, or was stopped without a successor"
    ),
    "leader-replaced": (
        "another controller leads, and silence, votes and clocks do not show whether the previous "
        "leader resigned or failed"
    ),
    "epochs-skipped": (
        "epochs without a record precede this one: they had no winner, or their winners committed nothing"
    ),
    "set": "the record sets it",
    "removed": "the record removes it",
    "changed-nothing": "the state already matched the record",
    "unexplained": "no rule fits",
}
"""Every rule by name, with the condition for it."""

ASKED_RULES: dict[str, str] = {
    "session-expired": "a broker sent no heartbeat in time",
    "metadata-lag": "a broker applied nothing for too long",
    "fence-requested": "a broker asked to be fenced",
    "controlled-shutdown": "a broker asked to shut down",
    "directory-failed": "a broker reported failed log directories",
    "new-incarnation": "a broker registered while its earlier process was unfenced",
    "fenced-broker-leads": "a fenced broker led partitions when the leadership of the quorum began",
    "leadership-began": "a new active controller checked leaderless partitions",
    "leader-balance": "leaderships returned to preferred replicas, or a leaderless partition got a leader",
    "eligible-leaders-off": "eligible leader replicas were switched off",
    "token-expired": "a delegation token expired",
    "broker-id-unused": "a binding or claim of a broker id was obsolete",
    "controller-registered": "a new active controller published the levels that it supports",
    "transaction-abandoned": "an earlier active controller left a metadata transaction open",
}
"""Why the active controller wrote records on its own initiative, as recorded in its batches."""
