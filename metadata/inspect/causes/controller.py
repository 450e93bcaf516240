"""Why the active controller wrote records on its own initiative, as its batches say (docs/adr/0015)."""

from __future__ import annotations

from metaquorum.metadata.inspect.causes.rule import CauseRules, Reason
from metaquorum.metadata.records.batch_cause import BatchCause

WRITTEN: CauseRules[BatchCause] = CauseRules("asked: the controller itself (written in the batch)")


def _add(name: str, when: str) -> None:
    def find(cause: BatchCause) -> Reason | None:
        return Reason(when) if cause.rule == name else None

    WRITTEN.rule(name, when, precedence=len(WRITTEN.rules))(find)


_add("session-expired", "a broker sent no heartbeat in time")
_add("metadata-lag", "a broker applied nothing for too long")
_add("fence-requested", "a broker asked to be fenced")
_add("controlled-shutdown", "a broker asked to shut down")
_add("directory-failed", "a broker reported failed log directories")
_add("new-incarnation", "a broker registered while its earlier process was unfenced")
_add("fenced-broker-leads", "a fenced broker led partitions when the leadership of the quorum began")
_add("leadership-began", "a new active controller checked leaderless partitions")
_add("leader-balance", "leaderships returned to preferred replicas, or a leaderless partition got a leader")
_add("eligible-leaders-off", "eligible leader replicas were switched off")
_add("token-expired", "a delegation token expired")
_add("broker-id-unused", "a binding or claim of a broker id was obsolete")
_add("controller-registered", "a new active controller published the levels that it supports")
_add("transaction-abandoned", "an earlier active controller left a metadata transaction open")
