"""Which batches of transactions a cleaner drops, by their definition: pass after pass over made logs."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

from metaquorum.storage.batches.batch import EndMarker, encode_batch, encode_marker, parse_header, seal_batch
from metaquorum.storage.batches.format import HEADER_BYTES, TRANSACTIONAL
from metaquorum.storage.cleaner.retained import CleanedTransactions
from metaquorum.storage.partition.producers import AbortedTransaction

PRODUCERS = (-1, 5, 6, 7)
DATA, PLAIN, COMMIT, ABORT = "data", "plain", "commit", "abort"


@dataclass
class Step:
    """A batch of a log, of the transaction `of` (None: of none), whose marker it may be."""

    offset: int
    producer: int
    kind: str
    of: int | None = None
    emptied: bool = False

    def encoded(self) -> bytes:
        if self.kind in (COMMIT, ABORT):
            marker = EndMarker(self.kind == COMMIT, 0)
            data = encode_marker(marker, producer_id=self.producer, producer_epoch=0, timestamp_ms=1)
            body = b"" if self.emptied else data[HEADER_BYTES:]
            count = 0 if self.emptied else 1
            return seal_batch(parse_header(data)._replace(base_offset=self.offset, records_count=count), body)
        return encode_batch(
            base_offset=self.offset,
            leader_epoch=0,
            timestamp_ms=1,
            keys=[b"k", b"l"],
            values=[b"v", b"w"],
            producer_id=self.producer,
            attributes=TRANSACTIONAL if self.kind == DATA else 0,
        )


def written(rng: random.Random) -> list[Step]:
    """A log as leaders let it be: within a transaction a producer writes nothing outside of it."""
    steps: list[Step] = []
    open_since: dict[int, int] = {}
    offset = transactions = 0
    for _ in range(rng.randint(1, 40)):
        producer = rng.choice(PRODUCERS)
        kind = PLAIN if producer < 0 else rng.choice((DATA, DATA, PLAIN, COMMIT, ABORT))
        if kind == PLAIN and producer in open_since:
            kind = DATA
        if kind == DATA and producer not in open_since:
            open_since[producer] = transactions = transactions + 1
        of = open_since.get(producer)
        steps.append(Step(offset, producer, kind, of))
        offset += 2 if kind in (DATA, PLAIN) else 1
        if kind in (COMMIT, ABORT):
            open_since.pop(producer, None)
    return [one for one in steps if one.kind == PLAIN or one.of not in open_since.values()]


def aborted_in(steps: list[Step]) -> dict[int, AbortedTransaction]:
    """By transaction."""
    found = {}
    for end in steps:
        if end.kind == ABORT and end.of is not None:
            first = min(one.offset for one in steps if one.of == end.of)
            found[end.of] = AbortedTransaction(end.producer, first, end.offset, end.offset + 1)
    return found


def is_dropped(step: Step, steps: list[Step], aborted: dict[int, AbortedTransaction]) -> bool:
    if step.kind == PLAIN:
        return False
    if step.kind == DATA:
        return step.of in aborted
    return step.emptied or not any(one.kind == DATA and one.of == step.of for one in steps if step.of)


@pytest.mark.parametrize("seed", range(60))
def test_what_is_dropped_is_what_the_definition_says(seed: int) -> None:
    """A marker outlives its batches by one pass. What an earlier pass dropped, and the list of aborted
    transactions, which still has those whose marker went, change nothing for what is left."""
    rng = random.Random(seed)
    steps = written(rng)
    aborted = aborted_in(steps)
    for _ in range(3):
        transactions = CleanedTransactions(rng.sample(list(aborted.values()), len(aborted)))
        wanted = [is_dropped(one, steps, aborted) for one in steps]
        encoded = [one.encoded() for one in steps]
        assert [transactions.is_dropped(parse_header(one), one) for one in encoded] == wanted
        kept = [one for one, dropped in zip(steps, wanted, strict=True) if not dropped]
        stays = [aborted[one.of] for one in kept if one.kind == ABORT and one.of is not None]
        assert transactions.take_retained() == stays
        assert transactions.take_retained() == []
        # Compaction takes others too, and empties a marker that its producer needs.
        for one, dropped in zip(steps, wanted, strict=True):
            if dropped and one.kind in (COMMIT, ABORT) and rng.random() < 0.5:
                one.emptied = True
                kept.append(one)
        steps = [
            one for one in sorted(kept, key=lambda one: one.offset) if one.kind != DATA or rng.random() < 0.7
        ]
