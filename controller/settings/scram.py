"""Decisions on SCRAM credentials (KIP-554, KIP-900), with one result per user of a request.

Owns the records, in which only the keys are that RFC 5802 lets a server keep. Must not write the salted
password of the request, and does not derive keys: `metadata.settings.scram` does.
"""

from __future__ import annotations

from metaquorum.controller.features import LEVEL_SCRAM
from metaquorum.controller.request_checks import repeated
from metaquorum.controller.result import ControllerResult
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.records.types import Record, RemoveUserScramCredentialRecord
from metaquorum.metadata.requests.settings import (
    AlterScramRequest,
    ScramDeletion,
    ScramUpsertion,
    SettingResult,
    SettingsResponse,
)
from metaquorum.metadata.settings.scram import MAX_ITERATIONS, MIN_ITERATIONS, Mechanism, credential_record

Refusal = tuple[ErrorCode, str]


def decide_alter_scram(image: MetadataImage, request: AlterScramRequest) -> ControllerResult:
    """A user that a request names twice is left alone, as in Kafka, whatever the mechanisms."""
    changes: tuple[ScramDeletion | ScramUpsertion, ...] = (*request.deletions, *request.upsertions)
    twice = repeated(change.user for change in changes)
    records: list[Record] = []
    results: list[SettingResult] = []
    for user, change in {change.user: change for change in changes}.items():
        refusal = _refusal(image, change)
        if user in twice:
            text = f"user {user} is changed twice in one request: send one request per mechanism"
            refusal = (ErrorCode.DUPLICATE_RESOURCE, text)
        if refusal is not None:
            results.append(SettingResult(subject=user, error=refusal[0], message=refusal[1]))
            continue
        results.append(SettingResult(subject=user))
        records.append(_record(change))
    return ControllerResult(response=SettingsResponse(results=tuple(results)), records=tuple(records))


def _refusal(image: MetadataImage, change: ScramDeletion | ScramUpsertion) -> Refusal | None:
    if image.features.metadata_version < LEVEL_SCRAM:
        text = (
            "the cluster's metadata.version does not support SCRAM credentials: raise it to 3.5-IV2 or above"
        )
        return ErrorCode.UNSUPPORTED_VERSION, text
    if not change.user:
        return ErrorCode.UNACCEPTABLE_CREDENTIAL, "the user has no name: give one"
    if change.mechanism not in set(Mechanism):
        known = ", ".join(mechanism.title for mechanism in Mechanism)
        text = f"there is no SCRAM mechanism {change.mechanism}: use {known}"
        return ErrorCode.UNSUPPORTED_SASL_MECHANISM, text
    if isinstance(change, ScramDeletion):
        if (change.mechanism, change.user) in image.scram:
            return None
        title = Mechanism(change.mechanism).title
        text = f"user {change.user} has no credential for {title}: list the users to see their mechanisms"
        return ErrorCode.RESOURCE_NOT_FOUND, text
    if not MIN_ITERATIONS <= change.iterations <= MAX_ITERATIONS:
        text = f"{change.iterations} iterations are not allowed: give {MIN_ITERATIONS} to {MAX_ITERATIONS}"
        return ErrorCode.UNACCEPTABLE_CREDENTIAL, text
    if not change.salt or not change.salted_password:
        return ErrorCode.UNACCEPTABLE_CREDENTIAL, "the salt or the salted password is empty: send both"
    return None


def _record(change: ScramDeletion | ScramUpsertion) -> Record:
    if isinstance(change, ScramDeletion):
        return RemoveUserScramCredentialRecord(name=change.user, mechanism=change.mechanism)
    mechanism = Mechanism(change.mechanism)
    return credential_record(change.user, mechanism, change.salted_password, change.salt, change.iterations)
