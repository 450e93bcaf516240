"""The aborted transactions of one log, which let readers of committed records skip them.

Owns the search. Knows no files: `log_producers` stores the transactions in `.txnindex` files, one beside each
segment that has any (`storage.log.segment_index`).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import NamedTuple


class AbortedTransaction(NamedTuple):
    """`first_offset` is that of its first batch, `last_offset` that of the marker that aborted it;
    `stable_offset` is the last stable offset once that marker is committed."""

    producer_id: int
    first_offset: int
    last_offset: int
    stable_offset: int


class AbortedTransactions:
    """By rising offset of the marker. Stored in columns: a log may have many."""

    __slots__ = ("_firsts", "_lasts", "_producers", "_stables")

    def __init__(self, entries: Iterable[AbortedTransaction] = ()) -> None:
        self._producers, self._firsts = array("q"), array("q")
        self._lasts, self._stables = array("q"), array("q")
        for entry in entries:
            self.add(entry)

    def __len__(self) -> int:
        return len(self._lasts)

    def __iter__(self) -> Iterator[AbortedTransaction]:
        columns = zip(self._producers, self._firsts, self._lasts, self._stables, strict=True)
        return (AbortedTransaction(*row) for row in columns)

    def _columns(self) -> tuple[array[int], ...]:
        return self._producers, self._firsts, self._lasts, self._stables

    def copy(self) -> AbortedTransactions:
        made = AbortedTransactions()
        made._producers, made._firsts, made._lasts, made._stables = (one[:] for one in self._columns())
        return made

    def add(self, entry: AbortedTransaction) -> None:
        """Adds the newest one."""
        for column, value in zip(self._columns(), entry, strict=True):
            column.append(value)

    def ending_in(self, from_offset: int, to_offset: int) -> list[AbortedTransaction]:
        """Transactions whose marker is in [from_offset, to_offset)."""
        begin, end = bisect_left(self._lasts, from_offset), bisect_left(self._lasts, to_offset)
        return [AbortedTransaction(*[column[at] for column in self._columns()]) for at in range(begin, end)]

    def ends_above(self, offset: int) -> bool:
        """Whether a transaction's marker is at or above `offset`: one below has nothing there."""
        return bool(self._lasts) and self._lasts[-1] >= offset

    def overlapping(self, from_offset: int, to_offset: int) -> list[AbortedTransaction]:
        """Transactions that may have records in [from_offset, to_offset)."""
        found = []
        for at in range(bisect_left(self._lasts, from_offset), len(self._lasts)):
            if self._firsts[at] < to_offset:
                found.append(AbortedTransaction(*[column[at] for column in self._columns()]))
            if self._stables[at] >= to_offset:
                break  # when this one was aborted, everything below was decided
        return found

    def cut(self, end_offset: int) -> None:
        """Drops those whose marker is at or above `end_offset`."""
        keep = bisect_left(self._lasts, end_offset)
        for column in self._columns():
            del column[keep:]

    def trim(self, start_offset: int) -> None:
        """Drops those whose marker is below `start_offset`."""
        gone = bisect_left(self._lasts, start_offset)
        for column in self._columns():
            del column[:gone]
