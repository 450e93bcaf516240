"""Levels of a broker's loggers as configuration (KIP-412)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Iterator
from typing import Any, cast

import pytest

from metaquorum.listeners.forwarded.described_configs import OwnConfig, describe_configs
from metaquorum.listeners.forwarded.own_changes import OwnChanges
from metaquorum.listeners.services import Client
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.image import BROKER_LOGGER_RESOURCE, BROKER_RESOURCE, MetadataImage
from metaquorum.wire import codec
from metaquorum.wire.codec import Request
from metaquorum.wire.messages import (
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

INCREMENTAL_ALTER_CONFIGS = 44
NODE_ID = 3
SET, DELETE, APPEND = 0, 1, 2
PACKAGE, LOGGER = "metaquorum.loggers_test", "metaquorum.loggers_test.part.inner"
Resource = IncrementalAlterConfigsRequest.AlterConfigsResource
Config = IncrementalAlterConfigsRequest.AlterableConfig
Answer = IncrementalAlterConfigsResponse.AlterConfigsResourceResponse


@pytest.fixture(autouse=True)
def fixture_loggers() -> Iterator[None]:
    names = (None, PACKAGE, LOGGER)
    before = [logging.getLogger(name).level for name in names]
    logging.getLogger().setLevel(logging.WARNING)
    yield
    for name, level in zip(names, before, strict=True):
        logging.getLogger(name).setLevel(level)


def described(name: str = str(NODE_ID), *keys: str) -> DescribeConfigsResponse.DescribeConfigsResult:
    asked = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=BROKER_LOGGER_RESOURCE, resource_name=name, configuration_keys=keys or None
    )
    own = OwnConfig(node_id=NODE_ID, static={}, fixed=())
    answer = describe_configs(DescribeConfigsRequest(resources=(asked,)), 4, MetadataImage(), own)
    return answer.results[0]


def levels(*names: str) -> list[str | None]:
    found = {each.name: each.value for each in described(str(NODE_ID), *names).configs}
    return [found.get(name) for name in names]


def alter(*resources: Resource, validate_only: bool = False, is_broker: bool = False) -> tuple[Answer, ...]:
    async def forward(request: Request, client: Client) -> Any:
        """The controller: refuses everything, in its order."""
        return IncrementalAlterConfigsResponse(
            responses=tuple(
                Answer(
                    error_code=ErrorCode.INVALID_CONFIG,
                    error_message=None,
                    resource_type=each.resource_type,
                    resource_name=each.resource_name,
                )
                for each in request.body.resources
            )
        )

    body = IncrementalAlterConfigsRequest(resources=resources, validate_only=validate_only)
    frame = codec.encode_request(codec.RequestHeader(INCREMENTAL_ALTER_CONFIGS, 1, 1), body)
    request = codec.decode_request(b"".join(frame))
    handle = OwnChanges(NODE_ID, forward, is_broker=is_broker).handle

    async def answer() -> IncrementalAlterConfigsResponse:
        found = handle(request, cast("Client", None))
        return await found if isinstance(found, Awaitable) else found

    return asyncio.run(answer()).responses


def loggers(*ops: tuple[str, int, str | None], name: str = str(NODE_ID)) -> Resource:
    return Resource(
        resource_type=BROKER_LOGGER_RESOURCE,
        resource_name=name,
        configs=tuple(Config(name=key, config_operation=kind, value=value) for key, kind, value in ops),
    )


def test_levels_are_set_handed_down_and_deleted() -> None:
    assert levels("root", PACKAGE, LOGGER) == ["WARN"] * 3
    (answer,) = alter(loggers((PACKAGE, SET, "TRACE"), ("root", SET, "FATAL")))
    assert (answer.error_code, answer.resource_type, answer.resource_name) == (0, 8, "3")
    assert levels("root", PACKAGE, LOGGER) == ["FATAL", "TRACE", "TRACE"]
    assert logging.getLogger(LOGGER).isEnabledFor(logging.DEBUG)
    for level in ("ERROR", "WARN", "INFO", "DEBUG"):
        alter(loggers((LOGGER, SET, level)))
        assert levels(LOGGER) == [level]
    alter(loggers((LOGGER, DELETE, None), (PACKAGE, DELETE, None)))
    assert levels(PACKAGE, LOGGER) == ["FATAL", "FATAL"]


def test_a_package_that_does_not_log_itself_has_a_level() -> None:
    package = LOGGER.rpartition(".")[0]
    assert not isinstance(logging.Logger.manager.loggerDict[package], logging.Logger)
    alter(loggers((PACKAGE, SET, "DEBUG")))
    assert levels(package) == ["DEBUG"]
    assert not isinstance(logging.Logger.manager.loggerDict[package], logging.Logger), "reading makes none"


@pytest.mark.parametrize(
    ("op", "error"),
    [
        (("metaquorum.none", SET, "INFO"), ErrorCode.INVALID_CONFIG),
        (("metaquorum.none", DELETE, None), ErrorCode.INVALID_CONFIG),
        ((LOGGER, SET, "LOUD"), ErrorCode.INVALID_CONFIG),
        ((LOGGER, SET, "info"), ErrorCode.INVALID_CONFIG),
        ((LOGGER, SET, None), ErrorCode.INVALID_REQUEST),
        ((LOGGER, APPEND, "INFO"), ErrorCode.INVALID_REQUEST),
        ((LOGGER, 9, "INFO"), ErrorCode.INVALID_REQUEST),
        (("root", DELETE, None), ErrorCode.INVALID_REQUEST),
        ((PACKAGE, SET, "INFO"), ErrorCode.INVALID_REQUEST),
    ],
)
def test_a_change_that_is_refused_changes_no_other_level(
    op: tuple[str, int, str | None], error: ErrorCode
) -> None:
    (answer,) = alter(loggers((PACKAGE, SET, "DEBUG"), op))
    assert (answer.error_code, bool(answer.error_message)) == (error, True)
    assert levels(PACKAGE, LOGGER) == ["WARN", "WARN"]


@pytest.mark.parametrize("name", ["", "default", "4", "-3", "٣", "9" * 5000])
def test_only_the_broker_itself_knows_its_loggers(name: str) -> None:
    assert described(name).error_code == ErrorCode.INVALID_REQUEST
    (answer,) = alter(loggers((PACKAGE, SET, "DEBUG"), name=name))
    assert answer.error_code == ErrorCode.INVALID_REQUEST
    assert levels(PACKAGE) == ["WARN"]


def test_nothing_changes_where_the_request_is_to_be_checked_only_or_names_a_resource_twice() -> None:
    change = loggers((PACKAGE, SET, "DEBUG"))
    assert [each.error_code for each in alter(change, validate_only=True)] == [0]
    assert [each.error_code for each in alter(change, change)] == [ErrorCode.INVALID_REQUEST] * 2
    assert levels(PACKAGE) == ["WARN"]


def test_what_is_not_about_loggers_goes_on_and_answers_keep_the_order_of_the_request() -> None:
    others = [Resource(resource_type=BROKER_RESOURCE, resource_name=name, configs=()) for name in "ab"]
    answers = alter(others[0], loggers((PACKAGE, SET, "DEBUG")), others[1])
    assert [(each.resource_name, each.error_code) for each in answers] == [("a", 40), ("3", 0), ("b", 40)]
    assert [each.error_code for each in alter(*others)] == [40, 40]


def test_a_broker_passes_on_what_can_be_changed_through_it() -> None:
    def change(name: str, key: str, value: str) -> Resource:
        configs = (Config(name=key, config_operation=SET, value=value),)
        return Resource(resource_type=BROKER_RESOURCE, resource_name=name, configs=configs)

    asked = (
        change("4", "max.connections", "5"),
        change("3", "log.dirs", "/x"),
        change("3", "max.connections", "x"),
        change("", "ssl.keystore.location", "/x"),
        change("3", "max.connections", "5"),
        change("", "max.connections", "5"),
    )
    refused, reached = ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_CONFIG
    assert [each.error_code for each in alter(*asked, is_broker=True)] == [refused] * 4 + [reached] * 2
    assert [each.error_code for each in alter(*asked)] == [reached] * 6, "a controller decides itself"
