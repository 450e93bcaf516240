"""SCRAM credentials of a new cluster (KIP-900): the values of `storage format --add-scram`, and their
records.

Owns the text form, that of Kafka's `kafka-storage`: `MECHANISM=[name=...,password=...]`. No value has a
comma; double quotes around a value are dropped. An error names the part that is wrong and must not repeat it:
a mistyped value may be a password. Does not write records; `format` does.
"""

from __future__ import annotations

import base64
import binascii
import secrets
from collections.abc import Sequence

from metaquorum.cli.errors import Failure
from metaquorum.metadata.errors import UnsupportedVersionError
from metaquorum.metadata.features import metadata_version_name, record_version_for
from metaquorum.metadata.records.types import UserScramCredentialRecord
from metaquorum.metadata.settings.scram import (
    DEFAULT_ITERATIONS,
    MAX_ITERATIONS,
    MIN_ITERATIONS,
    SALT_BYTES,
    Mechanism,
    credential_record,
    salted_password,
)

OPTION = "--add-scram"
_FORM = "write SCRAM-SHA-256=[name=NAME,password=PASSWORD]"
_NAME, _SALT, _ITERATIONS, _PASSWORD, _SALTED = _KEYS = (
    *("name", "salt", "iterations", "password"),
    "saltedpassword",
)
_MECHANISMS = {each.title: each for each in Mechanism}


def first_credentials(texts: Sequence[str], level: int) -> tuple[UserScramCredentialRecord, ...]:
    """The records of all `--add-scram`, for a cluster at metadata.version `level`. Raises Failure."""
    if texts:
        try:
            record_version_for(UserScramCredentialRecord, level)
        except UnsupportedVersionError as error:
            raise Failure(
                f"{OPTION} needs metadata.version 3.5-IV2 or later, not {metadata_version_name(level)};"
                " give another --release-version"
            ) from error
    records = tuple(_record(text) for text in texts)
    named = [(record.name, record.mechanism) for record in records]
    twice = next((each for each in named if named.count(each) > 1), None)
    if twice is not None:
        raise Failure(f"{OPTION} gives {Mechanism(twice[1]).title} of user {twice[0]!r} twice")
    return records


def _record(text: str) -> UserScramCredentialRecord:
    title, equals, rest = text.strip().partition("=")
    if not equals:
        raise Failure(f"{OPTION} has no '='; {_FORM}")
    mechanism = _MECHANISMS.get(title)
    if mechanism is None:
        raise Failure(f"{OPTION} does not begin with {' or '.join(_MECHANISMS)} and '='; {_FORM}")
    if not (rest.startswith("[") and rest.endswith("]") and len(rest) > 1):
        raise Failure(f"{OPTION} {title} has no [ and ] around its values; {_FORM}")
    values = _values(title, rest[1:-1])
    iterations = _number(title, values)
    salt = _decoded(title, values, _SALT) if _SALT in values else secrets.token_bytes(SALT_BYTES)
    if _SALTED in values:
        salted = _decoded(title, values, _SALTED)
    else:
        salted = salted_password(mechanism, values[_PASSWORD], salt, iterations)
    return credential_record(values[_NAME], mechanism, salted, salt, iterations)


def _values(title: str, text: str) -> dict[str, str]:
    """The values by key, with all required keys."""
    values: dict[str, str] = {}
    for number, part in enumerate(text.split(","), start=1):
        key, equals, value = part.partition("=")
        if not equals or key not in _KEYS:
            raise Failure(
                f"{OPTION} {title}: part {number} is not KEY=VALUE with a key of {', '.join(_KEYS)} (values"
                " have no commas)"
            )
        if key in values:
            raise Failure(f"{OPTION} {title}: {key} is given twice")
        if len(value) > 1 and value.startswith('"') and value.endswith('"'):
            value = value[1:-1]
        if not value:
            raise Failure(f"{OPTION} {title}: {key} is empty")
        values[key] = value
    if _NAME not in values:
        raise Failure(f"{OPTION} {title}: there is no {_NAME}")
    if (_PASSWORD in values) == (_SALTED in values):
        raise Failure(f"{OPTION} {title}: give one of {_PASSWORD} and {_SALTED}")
    if _SALTED in values and _SALT not in values:
        raise Failure(f"{OPTION} {title}: {_SALTED} needs the {_SALT} that it was derived with")
    return values


def _number(title: str, values: dict[str, str]) -> int:
    text = values.get(_ITERATIONS, str(DEFAULT_ITERATIONS))
    if not (text.isascii() and text.isdigit()):
        raise Failure(f"{OPTION} {title}: {_ITERATIONS} is not a number")
    if len(text) > len(str(MAX_ITERATIONS)) or not MIN_ITERATIONS <= int(text) <= MAX_ITERATIONS:
        raise Failure(f"{OPTION} {title}: {_ITERATIONS} is not from {MIN_ITERATIONS} to {MAX_ITERATIONS}")
    return int(text)


def _decoded(title: str, values: dict[str, str], key: str) -> bytes:
    try:
        return base64.b64decode(values[key], validate=True)
    except (ValueError, binascii.Error):
        raise Failure(f"{OPTION} {title}: {key} is not base64") from None
