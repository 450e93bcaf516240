"""Settings, quotas, ACLs and credentials in words."""

from __future__ import annotations

from metaquorum.metadata.image import Acl
from metaquorum.metadata.meanings import quota_entity
from metaquorum.metadata.records import types as r
from metaquorum.metadata.settings.acls import Operation, PatternType, Permission, ResourceType, protocol_name
from metaquorum.metadata.text.tree import SCRAM_MECHANISMS, plain_number, quota_path


def quota_who(record: r.ClientQuotaRecord) -> str:
    """The whole entity: `client-id=app,user=alice`, `user=<default>`."""
    return quota_path(quota_entity(record))


def quota_text(record: r.ClientQuotaRecord) -> str:
    """`client-id=app,user=alice: producer_byte_rate=2097152`."""
    what = f"{record.key} removed" if record.remove else f"{record.key}={plain_number(record.value)}"
    return f"{quota_who(record)}: {what}"


def acl_text(acl: r.AccessControlEntryRecord | Acl) -> str:
    """`ALLOW READ on TOPIC orders (LITERAL) to User:alice from host *`."""
    what = f"{protocol_name(Permission, acl.permission_type)} {protocol_name(Operation, acl.operation)}"
    pattern = f"{acl.resource_name} ({protocol_name(PatternType, acl.pattern_type)})"
    where = f"{protocol_name(ResourceType, acl.resource_type)} {pattern}"
    return f"{what} on {where} to {acl.principal} from host {acl.host}"


def scram_text(record: r.UserScramCredentialRecord | r.RemoveUserScramCredentialRecord) -> str:
    """`alice: SCRAM-SHA-256`."""
    return f"{record.name}: {SCRAM_MECHANISMS.get(record.mechanism, record.mechanism)}"
