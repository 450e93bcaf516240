"""How settings, quotas, ACLs and credentials are said in words. Owns the texts only; no secret is in one."""

from __future__ import annotations

from enum import IntEnum

from metadata import records as r
from metadata.image import Acl
from metadata.settings.acls import Operation, PatternType, Permission, ResourceType
from metadata.tree import SCRAM_MECHANISMS, plain_number, quota_path
from storage.uuids import uuid_to_text


def quota_who(record: r.ClientQuotaRecord) -> str:
    """The whole entity: `client-id=app,user=alice`, `user=<default>`."""
    return quota_path(tuple(sorted((part.entity_type, part.entity_name) for part in record.entity)))


def quota_text(record: r.ClientQuotaRecord) -> str:
    """`client-id=app,user=alice: producer_byte_rate=2097152`."""
    what = f"{record.key} removed" if record.remove else f"{record.key}={plain_number(record.value)}"
    return f"{quota_who(record)}: {what}"


def acl_text(acl: r.AccessControlEntryRecord | Acl) -> str:
    """`ALLOW READ on TOPIC orders (LITERAL) to User:alice from host *`."""
    what = f"{_name(Permission, acl.permission_type)} {_name(Operation, acl.operation)}"
    pattern = f"{acl.resource_name} ({_name(PatternType, acl.pattern_type)})"
    where = f"{_name(ResourceType, acl.resource_type)} {pattern}"
    return f"{what} on {where} to {acl.principal} from host {acl.host}"


def acl_id_text(record: r.AccessControlEntryRecord | r.RemoveAccessControlEntryRecord) -> str:
    return uuid_to_text(record.id)


def scram_text(record: r.UserScramCredentialRecord | r.RemoveUserScramCredentialRecord) -> str:
    """`SCRAM-SHA-256 of alice`."""
    return f"{SCRAM_MECHANISMS.get(record.mechanism, record.mechanism)} of {record.name}"


def _name(kind: type[IntEnum], number: int) -> str:
    """The protocol's word for a number; the number itself where this program knows none."""
    try:
        return kind(number).name
    except ValueError:
        return str(number)
