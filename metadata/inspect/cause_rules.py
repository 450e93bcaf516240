"""The names of the rules by which causes are derived, and what makes each fit (docs/log-tools.md)."""

from __future__ import annotations

RULES: dict[str, str] = {
    "created": "the record creates it",
    "deleted": "a RemoveTopicRecord takes the topic with its partitions and settings away",
    "broker-fenced": "the same batch fences the broker, it was fenced before, or a batch soon after fences it"
    " (a fence of many partitions is split, its record stands in the last batch)",
    "broker-restarted": "the same batch registers a new incarnation of the broker",
    "controlled-shutdown": "the same batch says that the broker is in controlled shutdown, or it was before",
    "directory-failed": "the same batch takes the replica's log directory off the broker's registration, or"
    " it was off before",
    "broker-unregistered": "the same batch removes the broker's registration, or there is none",
    "replica-lagged": "it left the ISR while its broker was active and the leader stayed: it did not keep up",
    "replica-caught-up": "it joined the ISR",
    "no-eligible-leader": "no member of the ISR is active and no unclean election was made",
    "elected-from-isr": "the new leader was in the ISR",
    "elected-from-elr": "the new leader was an eligible leader replica (KIP-966)",
    "broker-returned": "the partition had no leader, and the new one's broker was unfenced by the same batch"
    " or before",
    "unclean-election": "the new leader was not in the ISR and not eligible: records may be lost",
    "recovery-finished": "the leader of an unclean election settled the partition (KIP-704)",
    "preferred-election": "the leadership went to the first replica while the old leader was active",
    "reassignment-started": "replicas are being added or removed from here on",
    "reassignment-changed": "a running reassignment got another target",
    "reassignment-completed": "the replicas are those without the removing ones",
    "reassignment-cancelled": "the replicas are those without the adding ones",
    "replicas-changed": "the replica list changed at once, with nothing to copy",
    "directory-assigned": "a broker said in which log directory a replica lies",
    "directory-moved": "a broker said that a replica lies in another log directory",
    "leader-epoch-raised": "the record names the same leader again, which raises the leader epoch",
    "eligible-leaders-changed": "the eligible leader replicas changed (KIP-966)",
    "registered": "the broker registered for the first time",
    "registered-again": "the same incarnation of the broker registered again",
    "session-expired": "the broker was fenced outside a controlled shutdown: no heartbeat came in time",
    "stopped-idle": "the broker was fenced while it led nothing and was in no ISR: it stopped in order, or no"
    " heartbeat came in time",
    "shutdown-finished": "the broker was fenced at the end of its controlled shutdown",
    "caught-up": "the broker was unfenced: its heartbeats came and it had read the log as far as its"
    " registration",
    "leader-elected": "a majority of the voters voted for the controller",
    "leader-resigned": "the controller before voted for its successor, or wrote until less than the default"
    " fetch timeout (2 s) before the election: it told the others to elect one",
    "leader-lost": "the controller before fell silent and did not vote for its successor: it failed or was"
    " cut off",
    "epochs-skipped": "epochs without a record lie before this one: elections that nobody won",
    "set": "the record sets it",
    "removed": "the record removes it",
    "unexplained": "no rule fits",
}
"""Every rule by name, with what makes it fit."""
