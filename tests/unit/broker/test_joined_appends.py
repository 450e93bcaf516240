"""Appends that wait together: what becomes one write, and what does not."""

from __future__ import annotations

from metaquorum.broker.replica.disk_work import AppendPartition
from metaquorum.broker.replica.store import store
from metaquorum.broker.replica.store.store import joined
from metaquorum.metadata.requests.data import PartitionKey
from metaquorum.storage.batches.batch import Batches
from metaquorum.storage.batches.encode import encode_batch

X, Y = (b"x" * 16, 0), (b"y" * 16, 0)


def append(key: PartitionKey, offset: int, *, size: int = 10, incarnation: int = 1) -> AppendPartition:
    data = encode_batch(
        base_offset=offset, leader_epoch=0, timestamp_ms=0, keys=[None], values=[bytes([offset]) * size]
    )
    return AppendPartition(
        directory_id=b"a", key=key, incarnation=incarnation, batches=Batches.parse(data), sync=True
    )


def offsets(works: list[AppendPartition]) -> list[tuple[PartitionKey, list[int]]]:
    for work in works:
        assert Batches.parse(work.batches.data) == work.batches, "the headers are those of the bytes"
    return [(work.key, [header.base_offset for header in work.batches.headers]) for work in works]


def test_appends_to_one_replica_are_one_and_keep_their_order() -> None:
    works = [append(X, 0), append(Y, 5), append(X, 1), append(Y, 6), append(X, 2)]
    assert offsets(joined(works)) == [(X, [0, 1, 2]), (Y, [5, 6])]


def test_an_append_of_another_incarnation_is_not_joined() -> None:
    works = [append(X, 0), append(X, 1, incarnation=2), append(X, 2, incarnation=2)]
    assert offsets(joined(works)) == [(X, [0]), (X, [1, 2])]


def test_large_appends_stay_as_they_are() -> None:
    large = store.JOINED_MAX_BYTES - 50
    works = [append(X, 0, size=large), append(X, 1), append(X, 2)]
    assert offsets(joined(works)) == [(X, [0]), (X, [1, 2])]
