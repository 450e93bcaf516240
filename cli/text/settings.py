"""Configurations, features, ACLs, quotas and users as Kafka's tools print them, and results of changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import click

from metaquorum.cli.errors import EXIT_FAILED, print_problem
from metaquorum.cli.text.output import echo_json
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.features import (
    METADATA_VERSION,
    MIN_METADATA_VERSION,
    FeatureDescription,
    metadata_version_name,
)
from metaquorum.metadata.image import Acl, QuotaEntity
from metaquorum.metadata.requests.settings import SettingResult
from metaquorum.metadata.settings.acls import Operation, PatternType, Permission, ResourceType
from metaquorum.metadata.settings.configs import ConfigEntry
from metaquorum.metadata.settings.scram import UserCredentials


def config_line(entry: ConfigEntry) -> str:
    """` name=value sensitive=false synonyms={SOURCE:name=value, ...}`, and whether
    the value has no effect yet."""
    synonyms = ", ".join(f"{each.source.name}:{each.name}={_shown(each.value)}" for each in entry.synonyms)
    sensitive = "true" if entry.sensitive else "false"
    note = "" if entry.note is None else f" note={{{entry.note}}}"
    return f"  {entry.name}={_shown(entry.value)} sensitive={sensitive} synonyms={{{synonyms}}}{note}"


def _shown(value: str | None) -> str:
    return "null" if value is None else value


def feature_line(feature: FeatureDescription, epoch: int) -> str:
    """A feature as `kafka-features describe` shows it."""
    low, high, finalized = (
        _level(feature.name, level)
        for level in (feature.min_level, feature.max_level, feature.finalized_level)
    )
    return (
        f"Feature: {feature.name}\tSupportedMinVersion: {low}\tSupportedMaxVersion: {high}\t"
        f"FinalizedVersionLevel: {finalized}\tEpoch: {epoch}"
    )


def _level(name: str, level: int) -> str:
    if name != METADATA_VERSION:
        return str(level)
    # A log without a level is at the first one.
    return metadata_version_name(max(level, MIN_METADATA_VERSION))


def acl_text(acls: Sequence[Acl]) -> str:
    """Entries grouped by resource pattern, as `kafka-acls --list` shows them."""
    patterns: dict[tuple[int, str, int], list[Acl]] = {}
    for acl in acls:
        patterns.setdefault((acl.resource_type, acl.resource_name, acl.pattern_type), []).append(acl)
    blocks = []
    for (resource, name, pattern), entries in sorted(patterns.items()):
        title = (
            f"ResourcePattern(resourceType={ResourceType(resource).name}, name={name}, "
            f"patternType={PatternType(pattern).name})"
        )
        lines = sorted(f"\t({acl_entry(entry)})" for entry in entries)
        blocks.append("\n".join([f"Current ACLs for resource `{title}`:", *lines]))
    return "\n\n".join(blocks)


def acl_entry(acl: Acl) -> str:
    """Which principal may or may not do what, without the resource."""
    return (
        f"principal={acl.principal}, host={acl.host}, operation={Operation(acl.operation).name}, "
        f"permissionType={Permission(acl.permission_type).name}"
    )


def quota_line(entity: QuotaEntity, quotas: Mapping[str, float]) -> str:
    """`Quota configs for user-principal 'alice', client-id 'app1' are key=value`."""
    subject = ", ".join(_quota_part(kind, name) for kind, name in reversed(entity))
    values = ", ".join(f"{key}={value}" for key, value in sorted(quotas.items()))
    return f"Quota configs for {subject} are {values}"


def _quota_part(kind: str, name: str | None) -> str:
    title = "user-principal" if kind == "user" else kind
    return f"the default {title}" if name is None else f"{title} '{name}'"


def user_line(user: UserCredentials) -> str:
    """`SCRAM credential configs for user-principal 'bob' are SCRAM-SHA-512=iterations=4096`."""
    found = ", ".join(f"{mechanism.title}=iterations={count}" for mechanism, count in user.iterations)
    return f"SCRAM credential configs for user-principal '{user.user}' are {found}"


def report(
    results: Sequence[SettingResult], done: str | Callable[[SettingResult], str], as_json: bool
) -> int:
    """Returns the exit code: failed if anything was refused. `done`: what holds now; the result does not
    say whether it held before."""
    for result in results:
        if as_json:
            subject = {"subject": result.subject, "error": result.error.name, "message": result.message}
            echo_json({**subject, "note": result.note})
        elif result.error is ErrorCode.NONE:
            text = done if isinstance(done, str) else done(result)
            click.echo(f"{result.subject}: {text}")
            remark(result.subject, result.note)
        else:
            refuse(result.subject, result.error, result.message)
    return EXIT_FAILED if any(result.error is not ErrorCode.NONE for result in results) else 0


def refuse(subject: str, error: ErrorCode, message: str | None) -> None:
    """Prints one line on standard error."""
    print_problem(f"{subject}: {error.name}: {message or 'refused'}")


def remark(subject: str, note: str | None) -> None:
    """Prints one line on standard error about a change that was accepted and has no effect yet."""
    if note is not None:
        print_problem(f"{subject}: note: {note}")


def pairs(texts: Sequence[str], what: str) -> list[tuple[str, str]]:
    """`key=value` arguments, split at the first `=`. Raises UsageError."""
    by_name = []
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise click.UsageError(f"{text!r} is not a {what}; write key=value")
        by_name.append((key, value))
    return by_name
