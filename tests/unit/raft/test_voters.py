"""Voter sets: how they may change, their records' bytes, and which one is in force where in a log."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaquorum.metadata.records import codec, control
from metaquorum.raft.voters import (
    ControlValue,
    Endpoint,
    VersionRange,
    VoterChange,
    VoterHistory,
    VoterNode,
    VotersAt,
    VoterSet,
    encode_control_batch,
    kraft_version_record,
    voter_changes,
    voters_record,
)
from metaquorum.storage.batches.batch import Batches
from metaquorum.storage.batches.encode import control_key, encode_batch
from metaquorum.storage.errors import BatchError
from metaquorum.storage.log.epochs import EpochTable


def directory(number: int) -> bytes:
    return number.to_bytes(16, "big")


def voter(node_id: int, number: int | None = None) -> VoterNode:
    return VoterNode(node_id=node_id, directory_id=directory(1000 + (number or node_id)))


def voters(*node_ids: int) -> VoterSet:
    return VoterSet(voter(node_id) for node_id in node_ids)


ENDPOINTS = st.builds(
    Endpoint, st.text(max_size=200), st.text(max_size=9), st.integers(min_value=0, max_value=65535)
)
LEVELS = st.integers(min_value=0, max_value=9)
NODES = st.builds(
    VoterNode,
    node_id=st.integers(min_value=0, max_value=2**31 - 1),
    directory_id=st.none() | st.integers(min_value=1, max_value=2**128 - 1).map(directory),
    endpoints=st.lists(ENDPOINTS, max_size=3).map(tuple),
    versions=st.builds(VersionRange, LEVELS, LEVELS),
)
SETS = st.lists(NODES, min_size=1, max_size=150, unique_by=lambda node: node.node_id).map(VoterSet)


def control_batch(*records: ControlValue, base_offset: int = 7) -> Batches:
    data = encode_control_batch(records, base_offset=base_offset, epoch=3, timestamp_ms=5)
    return Batches.parse(data)


@given(SETS)
def test_records_survive_their_bytes_and_are_those_of_the_metadata_codec(chosen: VoterSet) -> None:
    batch = control_batch(kraft_version_record(1), voters_record(chosen))
    assert voter_changes(batch) == [
        VoterChange(offset=7, kraft_version=1),
        VoterChange(offset=8, voters=chosen),
    ]
    kafkas = control.VotersRecord(
        voters=tuple(
            control.Voter(
                node.node_id,
                node.directory_id or bytes(16),
                tuple(control.VoterEndpoint(one.name, one.host, one.port) for one in node.endpoints),
                control.KRaftVersionFeature(node.versions.lowest, node.versions.highest),
            )
            for node in chosen.nodes
        )
    )
    assert codec.encode_control(kafkas) == (control_key(6), voters_record(chosen).value)
    level = codec.encode_control(control.KRaftVersionRecord(kraft_version=1))
    assert level == (control_key(5), kraft_version_record(1).value)


def test_other_records_are_skipped() -> None:
    leader_change = ControlValue(2, b"whatever")
    assert voter_changes(control_batch(leader_change, kraft_version_record(0))) == [
        VoterChange(offset=8, kraft_version=0)
    ]
    data = encode_batch(
        base_offset=0, leader_epoch=1, timestamp_ms=0, values=[voters_record(voters(1)).value]
    )
    assert voter_changes(Batches.parse(data)) == []


def test_tags_of_a_newer_release_are_skipped() -> None:
    plain = kraft_version_record(1).value
    tagged = plain[:-1] + b"\x02" + b"\x05\x03abc" + b"\x81\x01\x00"
    assert voter_changes(control_batch(ControlValue(5, tagged)))[0].kraft_version == 1


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        (kraft_version_record(2), "sets kraft.version 2, and this release knows 0 to 1"),
        (kraft_version_record(-1), "sets kraft.version -1, and this release knows 0 to 1"),
        (ControlValue(5, b"\x00\x01\x00\x01\x00"), "has version 1, and this release reads version 0"),
        (ControlValue(5, b""), "ends after 0 bytes, in the middle of a field"),
        (ControlValue(5, b"\x00\x00\x00\x01\x00!"), "continues past its end, at byte 5 of 6"),
        (ControlValue(6, b"\x00\x00\x00\x00"), "has null instead of a list or a text"),
        (ControlValue(6, b"\x00\x00\xff\xff\xff\xff\xff\x00"), "has a length that does not end"),
        (ControlValue(6, b"\x00\x00" + b"\x03" + 2 * voters_record(voters(1)).value[3:-1] + b"\0"), "one id"),
    ],
)
def test_records_that_cannot_be_read_name_their_offset(record: ControlValue, problem: str) -> None:
    name = "KRaftVersionRecord" if record.control_type == 5 else "VotersRecord"
    with pytest.raises(BatchError, match=f"the {name} at offset 7 .*{problem}.*; start the release"):
        voter_changes(control_batch(record))


def test_a_damaged_text_is_refused() -> None:
    named = VoterSet([VoterNode(node_id=1, directory_id=None, endpoints=(Endpoint("abc", "", 1),))])
    damaged = voters_record(named).value.replace(b"abc", b"a\xffc")
    with pytest.raises(BatchError, match="the VotersRecord at offset 7"):
        voter_changes(control_batch(ControlValue(6, damaged)))


@given(SETS, SETS)
def test_majorities_meet_exactly_when_no_two_can_miss_each_other(one: VoterSet, other: VoterSet) -> None:
    ours = {(node.node_id, node.directory_id) for node in one.nodes}
    theirs = {(node.node_id, node.directory_id) for node in other.nodes}
    assert one.majorities_meet(other) == (len(ours - theirs) + len(theirs - ours) <= 1)


def test_a_new_directory_under_the_same_id_is_two_changes() -> None:
    replaced = voters(1, 2, 3).with_voter(voter(1, 9))
    assert not voters(1, 2, 3).majorities_meet(replaced)
    assert voters(1, 2, 3).majorities_meet(voters(2, 3))
    assert voters(2, 3).majorities_meet(replaced)


def test_a_set_is_a_value() -> None:
    moved = VoterNode(node_id=2, directory_id=directory(1002), endpoints=(Endpoint("C", "h", 1),))
    assert list(voters(3, 1, 2)) == [1, 2, 3]
    assert voters(2, 1) == voters(1, 2) and hash(voters(2, 1)) == hash(voters(1, 2))
    assert voters(1, 2).with_voter(moved)[2] is moved and len(voters(1, 2)) == 2
    assert voters(1, 2).without(2) == voters(1) and voters(1).get(2) is None
    assert voters(1, 2).with_voter(moved) != voters(1, 2)
    assert str(voters(1)) == "{1:AAAAAAAAAAAAAAAAAAAD6Q}"
    with pytest.raises(ValueError, match="two voters have one id"):
        VoterSet([voter(1), voter(1, 5)])


def test_a_voter_that_is_not_pinned_votes_from_any_directory() -> None:
    loose = VoterSet([VoterNode(node_id=1, directory_id=None)])
    assert loose.is_voter(1, directory(77)) and not loose.is_voter(2, directory(77))
    assert voters(1).is_voter(1, directory(1001)) and not voters(1).is_voter(1, directory(77))


@given(st.data())
def test_history_is_what_the_records_that_remain_say(data: st.DataObject) -> None:
    """Against a plain list of (offset, record), cut and read again for every question."""
    configured = voters(1, 2, 3)
    history, kept, end, start, said = VoterHistory(configured), [], 0, 0, VotersAt()
    for _ in range(data.draw(st.integers(min_value=0, max_value=20))):
        match data.draw(st.sampled_from(["level", "voters", "both", "other", "cut", "trim", "reset"])):
            case "cut":
                end = data.draw(st.integers(min_value=start, max_value=end))
                history.truncate(end)
                kept = [change for change in kept if change.offset < end]
            case "trim":
                start = data.draw(st.integers(min_value=start, max_value=end))
                history.trim(start)
            case "reset":
                end = start = end + data.draw(st.integers(min_value=1, max_value=3))
                said = data.draw(st.sampled_from([VotersAt(), VotersAt(1, voters(4, 5))]))
                history.reset(end, said)
                kept = []
            case kind:
                found = []
                if kind in ("level", "both"):
                    found.append(VoterChange(offset=end, kraft_version=data.draw(st.sampled_from([0, 1]))))
                if kind in ("voters", "both"):
                    chosen = data.draw(st.sampled_from([voters(1), voters(1, 2), voters(2, 3, 4)]))
                    found.append(VoterChange(offset=end + len(found), voters=chosen))
                end += max(1, len(found))
                kept += found
                history.note_all(found)
        for offset in range(start, end + 1):
            assert history.at(offset) == _said_below(offset, kept, said)
        now = _said_below(end, kept, said)
        assert history.kraft_version == now.kraft_version
        assert history.newest == (now.voters or configured)
        assert (history.newest_offset is None) == (now.voters is None)
        tail = [(change.offset, change.voters) for change in kept if change.voters is not None]
        assert [entry for entry in history.entries if entry[0] >= start] == [
            entry for entry in tail if entry[0] >= start
        ]


def _said_below(offset: int, kept: list[VoterChange], said: VotersAt) -> VotersAt:
    for change in kept:
        if change.offset < offset:
            level = said.kraft_version if change.kraft_version is None else change.kraft_version
            said = VotersAt(level, change.voters or said.voters)
    return said


def test_what_formatting_wrote_stands_before_the_log() -> None:
    bootstrap = [VoterChange(offset=-1, kraft_version=1), VoterChange(offset=-1, voters=voters(1))]
    history = VoterHistory(VoterSet(), bootstrap)
    history.truncate(0)
    assert (history.newest, history.newest_offset, history.kraft_version) == (voters(1), -1, 1)
    assert VoterHistory(voters(2)).newest_offset is None


def test_a_salvaged_set_begins_an_epoch_and_a_leader_s_does_not() -> None:
    changes = [
        VoterChange(offset=-1, kraft_version=1),
        VoterChange(offset=-1, voters=voters(1, 2, 3)),
        VoterChange(offset=11, voters=voters(1, 2)),
        VoterChange(offset=20, kraft_version=1),
        VoterChange(offset=21, voters=voters(7, 8)),
    ]
    history = VoterHistory(VoterSet(), changes)
    epochs = EpochTable(((1, 0), (2, 10), (1002, 20)))
    assert [history.is_salvaged(offset, epochs) for offset, _ in history.entries] == [False, False, True]
    assert not history.is_salvaged(21, EpochTable(((1, 0), (2, 10))))
