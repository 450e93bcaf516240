"""What counts as a secret and how it is shown: the only place that decides this, for every tool and table.

The rule: a field that the schema table marks `secret`, a setting whose name indicates a password, and any
unreadable part of a record type with secret fields. Secrets are shown as `(redacted)` unless a user requested
them (`--secrets`).
"""

from __future__ import annotations

import re
from functools import cache, partial
from typing import Any

import msgspec

from metaquorum.metadata.records.fields import SETTING_VALUE
from metaquorum.metadata.records.schema import RECORD_SCHEMAS, SCHEMA_BY_CLASS

REDACTED = "(redacted)"

SECRET_KEYS = frozenset(
    schema.key for schema in RECORD_SCHEMAS if any(field.secret is True for field in schema.body.fields)
)
"""Types of which an unknown version, or an unknown field, is treated as a secret."""

_SETTING = re.compile(
    r"password|passwd|secret|credential|jaas\.config|keystore\.key|private\.key", re.IGNORECASE
)
_ABOUT_SECRETS = frozenset(
    (
        "iterations",
        "length",
        "class",
        "type",
        "algorithm",
        "ms",
        "seconds",
        "enable",
        "enabled",
        "location",
        "file",
    )
)
"""Last words of settings that are about passwords but are not secret."""


class Redacted(str):
    """A secret that prints as `(redacted)`, however it is formatted; two are equal if their secrets are.
    `secret` is the hidden text."""

    secret: str

    def __new__(cls, secret: str) -> Redacted:
        made = super().__new__(cls, REDACTED)
        made.secret = secret
        return made

    def __eq__(self, other: object) -> bool:
        return self.secret == other.secret if isinstance(other, Redacted) else False

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self.secret)

    def __str__(self) -> str:
        return REDACTED

    __repr__ = __str__


def json_bytes(value: object, *, secrets: bool = False) -> bytes:
    """Compact JSON: keys keep their order, sets are sorted, bytes in base64. Shows secrets only with
    `secrets`."""
    return msgspec.json.encode(value, enc_hook=partial(_plain, secrets=secrets))


def _plain(value: object, *, secrets: bool) -> object:
    if isinstance(value, Redacted):
        return value.secret if secrets else REDACTED
    if isinstance(value, set | frozenset):
        return sorted(value)
    raise NotImplementedError(f"no JSON form for {type(value).__name__}")


def is_secret_setting(name: str) -> bool:
    """Whether a setting of that name, known here or not, holds a secret: passwords, keys, JAAS lines."""
    return _SETTING.search(name) is not None and name.rpartition(".")[2].lower() not in _ABOUT_SECRETS


def setting_shown(name: str, value: str) -> str:
    """A setting's value, redacted if secret."""
    return Redacted(value) if is_secret_setting(name) else value


@cache
def secret_fields(record: type[Any]) -> frozenset[str]:
    """The names of a record's fields that are always secret."""
    return frozenset(field.name for field in SCHEMA_BY_CLASS[record].body.fields if field.secret is True)


def is_secret(secret: bool | str, record: object) -> bool:
    """Whether a field with this mark in the schema is a secret in this record."""
    if secret == SETTING_VALUE:
        return is_secret_setting(getattr(record, "name", ""))
    return bool(secret)
