"""Principals gain and lose permissions while nodes crash, pause and lose messages."""

from __future__ import annotations

from typing import Any

import pytest

from metaquorum.metadata.authorizer import Authorizer
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.records import types as r
from metaquorum.metadata.records.batch_cause import BatchCause, cause_record
from tests.sim.errors import SafetyError
from tests.sim.rights import RightsWorld, require_causes


def test_no_request_is_answered_by_rights_that_the_log_did_not_give() -> None:
    asked = allowed = behind = changes = 0
    for seed in (1, 2):
        world = RightsWorld(seed)
        world.run()
        asked, allowed, behind = asked + world.asked, allowed + world.allowed, behind + world.behind
        changes += world.changes
    assert asked > 500 and 0 < allowed < asked
    assert behind > 0 and changes > 20


def test_the_law_fires(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers that decide by the first image that they ever had."""
    allows, first = Authorizer.allows, dict[Authorizer, MetadataImage]()

    def stale(self: Authorizer, image: MetadataImage, *asked: Any) -> bool:
        return allows(self, first.setdefault(self, image), *asked)

    monkeypatch.setattr(Authorizer, "allows", stale)
    with pytest.raises(SafetyError, match="the committed log gives"):
        RightsWorld(1).run()


def test_a_change_that_names_no_one_is_found() -> None:
    entry = r.TopicRecord("t", bytes(16))
    require_causes([cause_record(BatchCause("CreateTopics", principal="User:a")), entry])
    for records in ([entry], [cause_record(BatchCause("DeleteTopics", principal="User:a")), entry]):
        with pytest.raises(SafetyError, match="was written for"):
            require_causes(records)
