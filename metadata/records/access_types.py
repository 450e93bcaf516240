"""The records of access control entries, SCRAM credentials and delegation tokens: a part of `types`, which
has them under the same names, with the same conventions.

Owns their classes. Does not know bytes (`codec`) or versions (`schema`).
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from metaquorum.metadata.records.parts import UnknownTags


class DelegationTokenRecord(msgspec.Struct, frozen=True, gc=False):
    """A delegation token was created (KIP-900). Times are milliseconds since 1970, named as in Kafka."""

    api_key: ClassVar[int] = 10
    type_name: ClassVar[str] = "DELEGATION_TOKEN_RECORD"

    owner: str
    requester: str
    renewers: tuple[str, ...]
    issue_timestamp: int
    max_timestamp: int
    expiration_timestamp: int
    token_id: str
    unknown_tags: UnknownTags = ()


class UserScramCredentialRecord(msgspec.Struct, frozen=True, gc=False):
    """A user's SCRAM credential (KIP-900). `mechanism` 1 is SCRAM-SHA-256, 2 SCRAM-SHA-512."""

    api_key: ClassVar[int] = 11
    type_name: ClassVar[str] = "USER_SCRAM_CREDENTIAL_RECORD"

    name: str
    mechanism: int
    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int
    unknown_tags: UnknownTags = ()


class AccessControlEntryRecord(msgspec.Struct, frozen=True, gc=False):
    """An access control entry was created. Its numbers are Kafka's codes for resources and operations."""

    api_key: ClassVar[int] = 18
    type_name: ClassVar[str] = "ACCESS_CONTROL_ENTRY_RECORD"

    id: bytes
    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission_type: int
    unknown_tags: UnknownTags = ()


class RemoveAccessControlEntryRecord(msgspec.Struct, frozen=True, gc=False):
    """An access control entry was removed."""

    api_key: ClassVar[int] = 19
    type_name: ClassVar[str] = "REMOVE_ACCESS_CONTROL_ENTRY_RECORD"

    id: bytes
    unknown_tags: UnknownTags = ()


class RemoveUserScramCredentialRecord(msgspec.Struct, frozen=True, gc=False):
    """A user's SCRAM credential was removed."""

    api_key: ClassVar[int] = 22
    type_name: ClassVar[str] = "REMOVE_USER_SCRAM_CREDENTIAL_RECORD"

    name: str
    mechanism: int
    unknown_tags: UnknownTags = ()


class RemoveDelegationTokenRecord(msgspec.Struct, frozen=True, gc=False):
    """A delegation token was removed."""

    api_key: ClassVar[int] = 26
    type_name: ClassVar[str] = "REMOVE_DELEGATION_TOKEN_RECORD"

    token_id: str
    unknown_tags: UnknownTags = ()
