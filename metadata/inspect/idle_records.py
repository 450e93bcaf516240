"""Records that change nothing: what they say was so already.

Owns the comparison of what one record is about, before and after it. Knows no files and no texts.
"""

from __future__ import annotations

from metadata import records as r
from metadata.image import ConfigResource, ImageBuilder
from metadata.meaning import quota_entity

NOT_JUDGED = object()
"""Of records that always say something: registrations, topics, the quorum's own."""


def subject(record: object, state: ImageBuilder) -> object:
    """What the record sets or removes, as it stands in `state`; None where nothing is there."""
    match record:
        case r.ConfigRecord():
            resource = ConfigResource(record.resource_type, record.resource_name)
            return (state.configs.get(resource) or {}).get(record.name)
        case r.ClientQuotaRecord():
            return (state.quotas.get(quota_entity(record)) or {}).get(record.key)
        case r.UserScramCredentialRecord() | r.RemoveUserScramCredentialRecord():
            return state.scram.get((record.mechanism, record.name))
        case r.AccessControlEntryRecord() | r.RemoveAccessControlEntryRecord():
            return state.acls.get(record.id)
        case r.DelegationTokenRecord() | r.RemoveDelegationTokenRecord():
            return state.tokens.get(record.token_id)
        case r.FeatureLevelRecord():
            return state.finalized.get(record.name)
        case r.BrokerRegistrationChangeRecord(broker_id=broker_id):
            return state.brokers.get(broker_id)
        case r.FenceBrokerRecord() | r.UnfenceBrokerRecord():
            return state.brokers.get(record.id)
    return NOT_JUDGED


def says_nothing(record: r.PartitionChangeRecord) -> bool:
    """Whether a partition change names no field at all. One that repeats what was so still raises epochs."""
    return all(
        value is None
        for value in (
            *(record.isr, record.leader, record.replicas, record.removing_replicas, record.adding_replicas),
            *(record.leader_recovery_state, record.directories),
            *(record.eligible_leader_replicas, record.last_known_elr),
        )
    )
