"""What a controller process says of its part in the quorum."""

from __future__ import annotations

import logging

import pytest

from metaquorum.controller.server.main import SEARCHES_BEFORE_SILENCE, Standing


def search(standing: Standing, times: int, epoch: int = 4) -> None:
    """A voter that nobody answers: its pre-votes time out, and it is back with the leader that it knew."""
    for _ in range(times):
        standing.moved("prospective", epoch, None, active=False)
        standing.moved("follower", epoch, 2, active=False)


def test_a_follower_takes_part_once_its_leader_answered_and_until_it_falls_silent() -> None:
    standing = Standing(lambda: (2, 3))
    standing.moved("follower", 4, 2, active=False)
    assert not standing.takes_part(high_watermark=7)
    standing.fetched(4)
    assert standing.takes_part(high_watermark=7)
    assert not standing.takes_part(high_watermark=-1)
    search(standing, 1)
    assert not standing.takes_part(high_watermark=7), "it follows a leader that no longer answers"
    standing.fetched(4)
    assert standing.takes_part(high_watermark=7)
    standing.moved("follower", 5, 3, active=False)
    assert not standing.takes_part(high_watermark=7), "the leader of the new epoch has not answered yet"


def test_a_leader_takes_part_while_it_is_active() -> None:
    standing = Standing(lambda: (2, 3))
    standing.moved("leader", 4, 1, active=False)
    assert not standing.takes_part(high_watermark=7)
    standing.moved("leader", 4, 1, active=True)
    assert standing.takes_part(high_watermark=7)
    standing.moved("resigned", 4, None, active=False)
    assert not standing.takes_part(high_watermark=7)


def test_a_search_without_an_end_is_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    standing = Standing(lambda: (2, 3))
    with caplog.at_level(logging.INFO):
        search(standing, 50)
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert "check that controllers 2, 3 run" in warnings[0]
    assert len(caplog.records) == 1 + 2 * (SEARCHES_BEFORE_SILENCE - 1)
    caplog.clear()
    with caplog.at_level(logging.INFO):
        standing.fetched(4)
        standing.moved("follower", 4, 2, active=False)
        standing.moved("follower", 4, 2, active=False)
        standing.moved("candidate", 5, None, active=False)
    lines = [record.getMessage() for record in caplog.records]
    assert lines == ["epoch 4: follower, node 2 leads", "epoch 5: candidate, no leader is known"]


def test_a_new_epoch_is_told_in_the_middle_of_a_search(caplog: pytest.LogCaptureFixture) -> None:
    standing = Standing(lambda: (2, 3))
    search(standing, 10)
    caplog.clear()
    with caplog.at_level(logging.INFO):
        standing.moved("follower", 5, 3, active=False)
    assert [record.getMessage() for record in caplog.records] == ["epoch 5: follower, node 3 leads"]


def test_the_answer_of_another_epochs_leader_is_not_enough() -> None:
    for epoch, enough in ((3, False), (4, True), (5, False)):
        standing = Standing(lambda: (2, 3))
        assert not standing.takes_part(high_watermark=0), "its role is not known yet"
        standing.moved("follower", 4, 2, active=False)
        standing.fetched(epoch)
        assert standing.fetched_in_epoch == epoch
        assert standing.takes_part(high_watermark=0) is enough


def test_one_line_has_the_facts_as_fields(caplog: pytest.LogCaptureFixture) -> None:
    standing = Standing(lambda: (2, 3))
    with caplog.at_level(logging.INFO):
        standing.moved("leader", 4, 1, active=True)
        standing.moved("unattached", 5, None, active=False)
    names = ("epoch", "leader_id", "quorum_role", "active", "source")
    assert [tuple(getattr(each, name) for name in names) for each in caplog.records] == [
        (4, 1, "leader", True, "live"),
        (5, -1, "unattached", False, "live"),
    ]
    assert caplog.messages == [
        "epoch 4: leader (active), node 1 leads",
        "epoch 5: unattached, no leader is known",
    ]
