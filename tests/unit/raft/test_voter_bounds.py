"""What a leader asks of a change of voters, at each bound; node 2 leads, so that ids are on either side."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from metaquorum.raft.core import RaftCore
from metaquorum.raft.effects import Respond
from metaquorum.raft.messages import RaftError
from metaquorum.raft.protocol import answers, voter_changes
from metaquorum.raft.protocol.voter_changes import Refusal
from metaquorum.raft.roles import PendingChange, ReplicaProgress
from metaquorum.raft.voters import Endpoint, VersionRange, VoterNode, VoterSet
from tests.raft.script import Script
from tests.raft.world import directory
from tests.unit.raft.test_timers_and_replicas import fetch_of

NOW = 10**6
HERE = (Endpoint("CONTROLLER", "host", 9000),)


def leading(options: str = "dynamic=yes") -> RaftCore:
    script = Script()
    script.run(f"nodes 3 observers=1 {options}")
    script.run("elect 2")
    return script.world.core(2)


def voter(node_id: int = 4, number: int | None = None, highest: int = 1) -> VoterNode:
    own = None if number == 0 else directory(number or node_id)
    return VoterNode(node_id=node_id, directory_id=own, endpoints=HERE, versions=VersionRange(0, highest))


def test_only_a_leader_says_where_its_epoch_began() -> None:
    script = Script()
    script.run("nodes 3")
    script.run("elect 2")
    cores = [script.world.core(node_id) for node_id in (1, 2, 3)]
    assert [core.epoch_start_offset for core in cores] == [None, 0, None]


@pytest.mark.parametrize(
    ("behind", "silent", "says"),
    [
        (0, 0, ""),
        (0, None, "does not fetch"),
        (None, 0, "does not fetch"),
        ("most", 0, ""),
        ("more", 0, "records behind"),
        (0, "patience", ""),
        (0, "longer", "does not fetch"),
    ],
)
def test_a_new_voter_is_heard_and_has_caught_up(
    behind: int | str | None, silent: int | str | None, says: str
) -> None:
    core = leading()
    state, config = core.state, core.state.config
    end = state.log.end_offset = state.voter_history.newest_offset + config.new_voter_lag_max + 50  # type: ignore[operator, misc]
    lags = {"most": config.new_voter_lag_max, "more": config.new_voter_lag_max + 1}
    patience = config.observer_patience_ms
    silences = {"patience": patience, "longer": patience + 1}
    progress = ReplicaProgress(node_id=4, directory_id=directory(4))
    progress.acked_offset = None if behind is None else end - lags.get(behind, behind)  # type: ignore[arg-type, operator]
    progress.last_fetch_ms = None if silent is None else NOW - silences.get(silent, silent)  # type: ignore[arg-type, operator]
    state.leader_view().observers[4, directory(4)] = progress
    found = voter_changes._refuse_new_voter(state, voter(), now_ms=NOW)
    assert (found is None) == (says == "")
    if found is not None:
        assert found.error is RaftError.REQUEST_TIMED_OUT and says in found.message
    # Another directory of it is another replica.
    other = voter_changes._refuse_new_voter(state, voter(4, 9), now_ms=NOW)
    assert other is not None and "does not fetch" in other.message


@pytest.mark.parametrize(("past", "heard"), [(-1, False), (0, False), (1, True)])
def test_what_was_fetched_before_the_newest_set_is_not_heard(past: int, heard: bool) -> None:
    core = leading()
    newest = core.state.voter_history.newest_offset
    assert newest is not None
    progress = ReplicaProgress(node_id=4, directory_id=directory(4))
    progress.acked_offset, progress.last_fetch_ms = newest + past, NOW
    core.state.leader_view().observers[4, directory(4)] = progress
    found = voter_changes._lag(core.state, voter(), now_ms=NOW)
    assert found == (core.log_end_offset - newest - past if heard else None)


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({}, None),
        ({"node_id": 0}, None),
        ({"node_id": -1}, RaftError.INVALID_REQUEST),
        ({"directory_id": None}, RaftError.INVALID_REQUEST),
        ({"directory_id": bytes(16)}, RaftError.INVALID_REQUEST),
        ({"directory_id": b"x" * 15}, RaftError.INVALID_REQUEST),
        ({"endpoints": ()}, RaftError.INVALID_REQUEST),
        ({"versions": VersionRange(0, 0)}, RaftError.INVALID_REQUEST),
        ({"versions": VersionRange(1, 1)}, None),
        ({"versions": VersionRange(2, 3)}, RaftError.INVALID_REQUEST),
    ],
)
def test_an_entry_has_all_that_a_voter_needs(changed: dict[str, object], error: RaftError | None) -> None:
    found = voter_changes._refuse_entry(leading().state, replace(voter(), **changed))  # type: ignore[arg-type]
    assert (None if found is None else found.error) is error


@pytest.mark.parametrize(
    ("node_id", "number", "known"), [(1, 1, True), (2, 2, True), (3, 3, True), (1, 9, False), (4, 4, False)]
)
def test_a_voter_is_known_by_its_id_and_its_directory(node_id: int, number: int, known: bool) -> None:
    state = leading().state
    found = voter_changes._refuse_unknown(state, node_id, directory(number))
    assert (found is None) is known
    assert found is None or found.error is RaftError.VOTER_NOT_FOUND
    nothing = voter_changes._refuse_unknown(state, node_id, b"")
    assert nothing is not None and "directory id none" in nothing.message


@pytest.mark.parametrize("wrong", [None, 1, 2, 3])
@pytest.mark.parametrize("how", ["directory", "endpoint", "level"])
def test_the_first_set_names_the_directories_that_vote(wrong: int | None, how: str) -> None:
    core = leading(options="")
    changes = {
        "directory": lambda node_id: voter(node_id, 9),
        "endpoint": lambda node_id: replace(voter(node_id), endpoints=()),
        "level": lambda node_id: voter(node_id, highest=0),
    }
    named = VoterSet(changes[how](each) if each == wrong else voter(each) for each in (1, 2, 3))
    said = voter_changes._refuse_first_set(core.state, 1, named)
    assert (said == "") == (wrong is None)
    if wrong is not None:
        assert said.startswith(f"node {wrong} ")
    assert "name exactly those" in voter_changes._refuse_first_set(
        core.state, 1, VoterSet(voter(each) for each in (1, 2))
    )


def test_a_change_waits_for_what_was_changed_before() -> None:
    core = leading()
    state, view = core.state, core.state.leader_view()
    assert voter_changes._not_now(state) is None
    newest = state.voter_history.newest_offset
    assert newest is not None
    for high_watermark, says in (
        (core.epoch_start_offset, "committed nothing in its epoch"),
        (newest, "not committed yet"),
        (newest + 1, ""),
    ):
        state.log.high_watermark = high_watermark  # type: ignore[assignment]
        found = voter_changes._not_now(state)
        assert (found is None) == (says == "")
        assert found is None or (found.error is RaftError.REQUEST_TIMED_OUT and says in found.message)
    view.change = PendingChange(key=5, epoch=1, offset=newest + 1, deadline_ms=77)
    assert isinstance(voter_changes._not_now(state), Refusal)
    assert (voter_changes.settled_due_ms(state), voter_changes.answer_due_ms(state)) == (None, 77)
    state.log.high_watermark = newest + 2
    assert voter_changes.settled_due_ms(state) == 0
    voter_changes.settle(state, now_ms=NOW)
    assert view.change is None and core.is_leader
    assert (voter_changes.settled_due_ms(state), voter_changes.answer_due_ms(state)) == (None, None)


@pytest.mark.parametrize(
    ("end", "error"),
    [("settle", RaftError.NONE), ("give_answer_up", RaftError.REQUEST_TIMED_OUT)],
)
def test_who_asked_for_a_change_is_answered_once_however_it_ends(end: str, error: RaftError) -> None:
    core = leading()
    state, view = core.state, core.state.leader_view()
    newest = state.voter_history.newest_offset or 0
    state.log.high_watermark = newest + 2
    view.change = PendingChange(key=5, epoch=1, offset=newest + 1, deadline_ms=77)
    state.out.clear()
    for _ in range(2):
        getattr(voter_changes, end)(state, now_ms=NOW)
        assert view.change is None
    answered = [one for one in state.out if isinstance(one, Respond)]
    assert [(one.key, one.response.error) for one in answered] == [(5, error)]


@pytest.mark.parametrize(
    ("voter_", "fields", "wakes"),
    [
        (True, {}, False),
        (True, {"read_round": 4, "asking": True}, True),
        (True, {"read_round": 5, "asking": True}, False),
        (True, {"read_round": 4}, False),
        (True, {"fetch_offset": -1}, True),
        (True, {"high_watermark": -1}, True),
        (False, {"fetch_offset": -1}, False),
        (False, {"read_round": 4, "asking": True}, False),
        (False, {"fetch_offset": -1, "wake": 0}, True),
        (False, {"high_watermark": -1, "wake": 0}, True),
        (False, {"wake": 0}, False),
    ],
)
def test_a_parked_fetch_is_answered_for_news_alone(
    voter_: bool, fields: dict[str, int | bool], wakes: bool
) -> None:
    """A round of reads that is over is no news. Offsets and high watermarks count from the leader's own;
    observers are woken for what matters to them, which ends at `wake` from the leader's end on."""
    core = leading()
    state, view = core.state, core.state.leader_view()
    end = state.log.end_offset
    view.reads.round, view.reads.asking = 5, [1] if fields.get("asking") else []
    view.observer_wake_offset = end + fields.get("wake", -end)
    request = fetch_of(
        1,
        end + fields.get("fetch_offset", 0),
        high_watermark=view.announced + fields.get("high_watermark", 0),
        read_round=fields.get("read_round", 5),
    )
    assert answers._has_news(state, view, request, is_voter=voter_) is wakes
