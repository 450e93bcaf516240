"""The names of the rules by which causes are derived, and what makes each fit (docs/log-tools.md)."""

from __future__ import annotations

RULES: dict[str, str] = {
    "created": "the record creates it",
    "deleted": "a RemoveTopicRecord takes the topic with its partitions and settings away",
    "broker-fenced": "the same batch fences the broker, it was fenced before, or a batch soon after"
    " fences it (a fence of many partitions is split, its record stands in the last batch)",
    "broker-restarted": "the same batch registers a new incarnation of the broker",
    "controlled-shutdown": "the same batch says that the broker is in controlled shutdown, or it was before",
    "directory-failed": "the same batch takes the replica's log directory off the broker's registration,"
    " or it was off before",
    "broker-unregistered": "the same batch removes the broker's registration, or there is none",
    "replica-lagged": "it left the ISR while its broker was active and the leader stayed: it did not keep up",
    "lagged-or-stopping": "the same below metadata.version 3.3-IV3, where no log says that a broker stops"
    " in order: the log cannot tell which",
    "stopping-or-fenced": "an active broker lost the leadership, below metadata.version 3.3-IV3: it"
    " stopped in order or was being fenced, the log cannot tell which",
    "replica-caught-up": "it joined the ISR",
    "no-eligible-leader": "no member of the ISR is active and no unclean election was made",
    "elected-from-isr": "the new leader was in the ISR",
    "elected-from-elr": "the new leader was an eligible leader replica (KIP-966)",
    "broker-returned": "the partition had no leader, and the new one's broker was unfenced by the same"
    " batch or up to a second before",
    "led-again": "the partition had no leader, and the new one's broker was active all the time: somebody"
    " asked for an election or a new controller made it, the log cannot tell which",
    "unclean-election": "the new leader was not in the ISR and not eligible: records may be lost. The"
    " setting let it happen if a broker's state changed in the same batch; else the log cannot tell that"
    " from a request",
    "recovery-finished": "the leader of an unclean election settled the partition (KIP-704)",
    "preferred-election": "the leadership went to the first replica while the old leader was active:"
    " balanced by the controller or asked for",
    "reassignment-started": "replicas are being added or removed from here on",
    "reassignment-changed": "a running reassignment got another target, or ended at another one",
    "reassignment-completed": "the replicas are those without the removing ones",
    "reassignment-cancelled": "the replicas are those without the adding ones: cancelled or assigned back",
    "replicas-changed": "the replica list changed at once, with nothing to copy",
    "directory-assigned": "a broker said in which log directory a replica lies",
    "directory-moved": "a replica lies in another log directory: moved there or made anew",
    "leader-epoch-raised": "the record names the same leader again, which raises the leader epoch",
    "eligible-leaders-changed": "the eligible leader replicas changed (KIP-966)",
    "registered": "the broker registered, and was not registered before",
    "registered-again": "the same incarnation of the broker registered again",
    "session-expired": "the broker was fenced while it led partitions, which no stop in order does: no"
    " heartbeat came in time (a broker of this project that cannot go on is fenced with the same records)",
    "stopped-idle": "the broker was fenced while it led nothing, less than the default session timeout (9"
    " s) after its last sign of life: it stopped in order, which is granted at once",
    "stopped-or-silent": "the broker was fenced while it led nothing, later than that: it stopped in"
    " order, or no heartbeat came in time; the log cannot tell which",
    "shutdown-finished": "the broker was fenced in its controlled shutdown while it led nothing, less"
    " than the default session timeout (9 s) after it began: the shutdown ended",
    "caught-up": "the broker was unfenced: its heartbeats came and it had read the log as far as its"
    " registration",
    "leader-elected": "a majority of the voters voted for the controller",
    "leader-resigned": "the controller before wrote until less than the default fetch timeout (2 s)"
    " before the election: it told the others to elect one",
    "leader-lost": "the controller before fell silent for longer and did not vote for its successor: it"
    " failed, was cut off, or was stopped when nobody was there to follow it",
    "leader-replaced": "another controller leads, and silence, votes and clocks do not say whether the"
    " one before resigned or failed: the log cannot tell",
    "epochs-skipped": "epochs without a record lie before this one: nobody won them, or the winner"
    " committed nothing",
    "set": "the record sets it",
    "removed": "the record removes it",
    "changed-nothing": "all was as the record says already",
    "unexplained": "no rule fits",
}
"""Every rule by name, with what makes it fit."""
