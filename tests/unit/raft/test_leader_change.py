"""The record that begins an epoch is what Kafka's schema says."""

from __future__ import annotations

import pytest

from metaquorum.metadata.records.codec import decode_control
from metaquorum.metadata.records.control import LeaderChangeMessage, LeaderVoter
from metaquorum.raft.voters import encode_control_batch, leader_change_record
from metaquorum.storage.batches.batch import iter_batches


@pytest.mark.parametrize(
    "voters", [(1,), (3000, 3001, 3002), tuple(range(126)), tuple(range(127)), tuple(range(300))]
)
def test_the_codec_of_the_table_reads_it(voters: tuple[int, ...]) -> None:
    change = leader_change_record(leader_id=voters[-1], voter_ids=voters, granting_ids=voters[1:])
    data = encode_control_batch([change], base_offset=7, epoch=5, timestamp_ms=1234)
    (batch,) = iter_batches(data)
    header = batch.header
    assert (header.base_offset, header.leader_epoch, header.is_control) == (7, 5, True)
    assert (header.base_timestamp_ms, header.next_offset) == (1234, 8)
    (record,) = batch.records()
    assert record.key is not None and record.value is not None
    assert decode_control(record.key, record.value) == LeaderChangeMessage(
        leader_id=voters[-1],
        voters=tuple(LeaderVoter(voter_id=at) for at in voters),
        granting_voters=tuple(LeaderVoter(voter_id=at) for at in voters[1:]),
    )
