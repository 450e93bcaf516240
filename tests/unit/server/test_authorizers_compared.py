"""A controller and a broker that registers say so when only one of them checks rights."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest

from metaquorum.config.security import STANDARD_AUTHORIZER
from metaquorum.rpc.rights import KEY, Authorizers
from tests.unit.server.nodes import new_site, running_broker, running_controller

CHECKS = {"authorizer.class.name": STANDARD_AUTHORIZER, "super.users": "User:ANONYMOUS"}
EVERYONE = {**CHECKS, "allow.everyone.if.no.acl.found": "true"}


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.message for each in caplog.records if "has another authorizer" in each.message]


@pytest.mark.parametrize(
    ("controller", "broker", "differ"),
    [
        ({}, {}, False),
        (CHECKS, CHECKS, False),
        ({}, CHECKS, True),
        (CHECKS, {}, True),
        (CHECKS, EVERYONE, True),
    ],
    ids=["none", "both", "broker only", "controller only", "open without entries"],
)
async def test_different_authorizers_are_a_warning_at_both_ends(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    controller: Mapping[str, str],
    broker: Mapping[str, str],
    differ: bool,
) -> None:
    site = new_site(tmp_path)
    async with running_controller(site.controller_file(controller)):
        async with running_broker(site.broker_file(broker)) as process, asyncio.timeout(60):
            epoch = None
            while epoch is None:
                await asyncio.sleep(0.02)
                epoch = process.node.status(now_ms=0).broker_epoch
    found = sorted(lines(caplog))
    assert len(found) == (2 if differ else 0), found
    if differ:
        assert found[0].startswith("broker 101 at 127.0.0.1:")
        assert found[1].startswith(f"controller 1 at 127.0.0.1:{site.controller_port} has another authorizer")
        assert all("in every node's file" in each for each in found)


def test_one_warning_per_node_and_interval_and_none_without_knowledge(
    caplog: pytest.LogCaptureFixture,
) -> None:
    values = {"authorizer.class.name": "", "allow.everyone.if.no.acl.found": "false"}
    own = Authorizers(values)
    theirs = Authorizers({**values, "authorizer.class.name": STANDARD_AUTHORIZER})
    for port in range(5):
        own.compare(theirs.metadata, "broker 3", f"10.0.0.1:{port}")
    own.compare(theirs.metadata, "broker 4", "10.0.0.1:9")
    assert [each.split()[1] for each in lines(caplog)] == ["3", "4"]
    caplog.clear()
    for silent in (None, (), (("other", "x"),), own.metadata):
        own.compare(silent, "broker 5", "10.0.0.2:1")
    assert lines(caplog) == [] and own.metadata[0][0] == KEY
