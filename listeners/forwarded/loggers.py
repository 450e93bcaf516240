"""Loggers of this process as configuration (KIP-412): resource type 8 of DescribeConfigs and
IncrementalAlterConfigs.

Levels belong to the process that gets the request, and last as long as it runs.
"""

from __future__ import annotations

import logging

from metaquorum.listeners.forwarded.api import invalid, once
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.requests.settings import OpKind
from metaquorum.metadata.settings.configs import ConfigEntry, ConfigSource
from metaquorum.metadata.settings.keys import MAX_INT, whole_number
from metaquorum.wire.messages import IncrementalAlterConfigsRequest

ROOT = "root"
LEVELS = {"FATAL": 50, "ERROR": 40, "WARN": 30, "INFO": 20, "DEBUG": 10, "TRACE": 5}
"""Kafka's names of Python's levels, from the highest."""

_log = logging.getLogger(__name__)
_Resource = IncrementalAlterConfigsRequest.AlterConfigsResource


def logger_refusal(name: str, node_id: int) -> ApiError | None:
    """Why a resource is not the loggers of this process."""
    number = whole_number(name, MAX_INT)
    if number is None:
        return invalid(f"{name!r} is not a node id, and only nodes have loggers: give an id")
    if number != node_id:
        return invalid(f"this is node {node_id}, not {name}: use that node")
    return None


def logger_entries() -> list[ConfigEntry]:
    """Every logger and package of loggers, with its level in force."""
    names = [ROOT, *list(logging.Logger.manager.loggerDict)]
    source = ConfigSource.DYNAMIC_BROKER_LOGGER_CONFIG
    return [ConfigEntry(name=name, value=_level_name(name), source=source, sensitive=False) for name in names]


def _level_name(name: str) -> str:
    """For a package that does not log itself, the level that it passes down."""
    known = logging.Logger.manager.loggerDict.get(name)
    while name != ROOT and not isinstance(known, logging.Logger):
        name = name.rpartition(".")[0] or ROOT
        known = logging.Logger.manager.loggerDict.get(name)
    level = _logger(name).getEffectiveLevel()
    return next((each for each, number in LEVELS.items() if level >= number), "TRACE")


def _logger(name: str) -> logging.Logger:
    return logging.getLogger(None if name == ROOT else name)


def alter_loggers(resource: _Resource, node_id: int, *, validate_only: bool) -> ApiError | None:
    """Changes levels, all of them or none. Returns None if it succeeded."""
    refusal = logger_refusal(resource.resource_name, node_id)
    if refusal is None and once(resource.configs, lambda each: each.name)[1]:
        refusal = invalid("a logger is named twice: name it once")
    for change in resource.configs:
        refusal = refusal or _op_refusal(change)
    if refusal is not None or validate_only:
        return refusal
    for change in resource.configs:
        is_set = change.config_operation == OpKind.SET.value
        _logger(change.name).setLevel(LEVELS[change.value or ""] if is_set else logging.NOTSET)
        what = f"is {change.value} now" if is_set else "no longer has its own level"
        _log.warning("the level of logger %s %s", change.name, what)
    return None


def _op_refusal(change: IncrementalAlterConfigsRequest.AlterableConfig) -> ApiError | None:
    name, operation = change.name, change.config_operation
    if operation not in (OpKind.SET.value, OpKind.DELETE.value):
        return invalid(f"a level is set (0) or deleted (1); {operation} is neither")
    if operation == OpKind.SET.value and change.value is None:
        return invalid(f"logger {name} has no level in the request: give one")
    if name != ROOT and name not in logging.Logger.manager.loggerDict:
        text = f"there is no logger {name}: describe the loggers to see them"
        return ApiError(ErrorCode.INVALID_CONFIG, text)
    if operation == OpKind.DELETE.value:
        return invalid("the root logger always has a level: set it") if name == ROOT else None
    if change.value not in LEVELS:
        text = f"{change.value} is not a level of logger {name}: use one of {', '.join(LEVELS)}"
        return ApiError(ErrorCode.INVALID_CONFIG, text)
    return None
