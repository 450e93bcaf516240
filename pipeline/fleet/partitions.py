"""The partitions of one synthetic cluster in columns, with sums over their history.

Leader, ISR, replicas and epochs of every partition, the encoding of a change, and the sums of the truth: how
long partitions had no leader or too few replicas in sync, and how often leaders and ISRs changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from metaquorum.metadata.columnar.encode import Bytes, ChangedRows, change_values, topic_words
from metaquorum.metadata.records.types import PartitionChangeRecord

CHANGE_VERSION = 1
"""PartitionChangeRecord's version at the level of the generated logs."""

WIDTH = 4
"""Columns of the replica lists: three replicas, and one more while a partition moves."""

NO_BROKER = -1
GONE = -2
"""The leader of a partition whose topic was deleted."""

Rows = npt.NDArray[np.int64]
Ints = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]
_NEVER = -1


class Change(NamedTuple):
    """New ISR masks (rows, WIDTH) and leaders of `rows`. Unchanged values are not written."""

    rows: Rows
    isr: Bools
    leader: Ints


@dataclass(slots=True, kw_only=True)
class Totals:
    """Sums over all partitions. Spans that are open at the end count up to the last record's time."""

    leaderless_partition_ms: int = 0
    under_min_isr_partition_ms: int = 0
    leaderless_spans: int = 0
    under_min_isr_spans: int = 0
    leader_changes: int = 0
    isr_shrinks: int = 0
    isr_expands: int = 0
    unclean_elections: int = 0
    partition_changes: int = 0


@dataclass(slots=True)
class _Columns:
    topic: Ints
    index: Ints
    replicas: Ints
    isr: Bools
    leader: Ints
    leader_epoch: Ints
    partition_epoch: Ints
    min_isr: Ints
    directory: npt.NDArray[np.int8]
    leaderless_since: Rows
    under_since: Rows


class Partitions:
    """Partitions as rows. Rows keep their numbers; those of a deleted topic stay and are marked as gone."""

    def __init__(self) -> None:
        self.topic_names: list[str] = []
        self.topic_ids: list[bytes] = []
        self.totals = Totals()
        self.samples: dict[int, list[dict[str, Any]]] = {}
        self._words = np.empty((0, 2), dtype=np.uint64)
        self.columns = _Columns(
            topic=np.empty(0, dtype=np.int32),
            index=np.empty(0, dtype=np.int32),
            replicas=np.empty((0, WIDTH), dtype=np.int32),
            isr=np.empty((0, WIDTH), dtype=bool),
            leader=np.empty(0, dtype=np.int32),
            leader_epoch=np.empty(0, dtype=np.int32),
            partition_epoch=np.empty(0, dtype=np.int32),
            min_isr=np.empty(0, dtype=np.int32),
            directory=np.empty((0, WIDTH), dtype=np.int8),
            leaderless_since=np.empty(0, dtype=np.int64),
            under_since=np.empty(0, dtype=np.int64),
        )

    def __len__(self) -> int:
        return len(self.columns.leader)

    def add_topic(self, name: str, topic_id: bytes, replicas: Ints, min_isr: int, directory: Any) -> Rows:
        """Adds a topic whose partitions are all in sync, with their first replica as
        leader. Returns its row numbers.

        `replicas` and `directory` (which of its broker's log directories holds a replica) are (n, width).
        """
        columns, count, width = self.columns, len(replicas), replicas.shape[1]
        wide = np.full((count, WIDTH), NO_BROKER, dtype=np.int32)
        wide[:, :width] = replicas
        held = np.zeros((count, WIDTH), dtype=np.int8)
        held[:, :width] = directory
        first = len(self)
        new: dict[str, Any] = {
            "topic": np.full(count, len(self.topic_ids), dtype=np.int32),
            "index": np.arange(count, dtype=np.int32),
            "replicas": wide,
            "isr": wide != NO_BROKER,
            "leader": wide[:, 0],
            "leader_epoch": np.zeros(count, dtype=np.int32),
            "partition_epoch": np.zeros(count, dtype=np.int32),
            "min_isr": np.full(count, min_isr, dtype=np.int32),
            "directory": held,
            "leaderless_since": np.full(count, _NEVER, dtype=np.int64),
            "under_since": np.full(count, _NEVER, dtype=np.int64),
        }
        for name_of, values in new.items():
            setattr(columns, name_of, np.concatenate([getattr(columns, name_of), values]))
        self.topic_names.append(name)
        self.topic_ids.append(topic_id)
        self._words = np.concatenate([self._words, topic_words([topic_id])])
        return np.arange(first, first + count, dtype=np.int64)

    def remove_topic(self, topic: int, now_ms: int) -> int:
        """Marks a topic's partitions as gone. Returns their number."""
        rows = np.flatnonzero((self.columns.topic == topic) & (self.columns.leader != GONE))
        self._account(rows, now_ms, np.ones(len(rows), dtype=bool), np.zeros(len(rows), dtype=bool))
        self.columns.leader[rows] = GONE
        self.columns.replicas[rows] = NO_BROKER
        self.columns.isr[rows] = False
        return len(rows)

    # -- looking -------------------------------------------------------------------------------------

    def live(self) -> Rows:
        """Rows of existing partitions."""
        return np.flatnonzero(self.columns.leader != GONE)

    def holding(self, broker: int) -> Rows:
        """Rows with a replica on `broker`."""
        return np.flatnonzero((self.columns.replicas == broker).any(axis=1))

    def in_isr(self, broker: int, rows: Rows) -> Bools:
        """Which of `rows` have `broker` in their ISR."""
        found: Bools = ((self.columns.replicas[rows] == broker) & self.columns.isr[rows]).any(axis=1)
        return found

    def path(self, row: int) -> str:
        """topic/index of a row."""
        return f"{self.topic_names[self.columns.topic[row]]}/{self.columns.index[row]}"

    def isr_of(self, row: int) -> list[int]:
        """The ISR of one partition, in replica order."""
        members: list[int] = self.columns.replicas[row][self.columns.isr[row]].tolist()
        return members

    # -- changing ------------------------------------------------------------------------------------

    def without(self, broker: int, rows: Rows) -> Change:
        """`broker` leaves the ISR of `rows` (those that have it). As the last member it stays, without
        leading. The first replica in sync becomes leader of a partition that it led."""
        rows = rows[self.in_isr(broker, rows)]
        columns = self.columns
        isr = columns.isr[rows].copy()
        alone = isr.sum(axis=1) == 1
        isr[(columns.replicas[rows] == broker) & ~alone[:, None]] = False
        leader = columns.leader[rows].copy()
        led = leader == broker
        first = np.take_along_axis(columns.replicas[rows], isr.argmax(axis=1)[:, None], axis=1)[:, 0]
        leader[led] = np.where(alone, NO_BROKER, first)[led]
        changed = ~alone | led
        return Change(rows[changed], isr[changed], leader[changed])

    def with_member(self, broker: int, rows: Rows) -> Change:
        """`broker` joins the ISR of `rows`, which all have a replica on it and a leader."""
        isr = self.columns.isr[rows] | (self.columns.replicas[rows] == broker)
        return Change(rows, isr, self.columns.leader[rows].copy())

    def led_by(self, broker: int | Ints, rows: Rows) -> Change:
        """`broker` becomes leader of `rows`; their ISR stays."""
        leader = np.broadcast_to(np.asarray(broker, dtype=np.int32), rows.shape).copy()
        return Change(rows, self.columns.isr[rows].copy(), leader)

    def encode(self, change: Change) -> list[tuple[str, Bytes]]:
        """The PartitionChangeRecords of a change, grouped by shape, each group in row order."""
        columns, rows = self.columns, change.rows
        isr_changed = (change.isr != columns.isr[rows]).any(axis=1)
        leader_changed = change.leader != columns.leader[rows]
        sizes = change.isr.sum(axis=1)
        shapes = np.where(isr_changed, sizes, 0) * 2 + leader_changed
        encoded = []
        for shape in np.unique(shapes).tolist():
            if not shape:
                continue
            mine = np.flatnonzero(shapes == shape)
            own = rows[mine]
            members = columns.replicas[own][change.isr[mine]].reshape(len(own), -1) if shape >= 2 else None
            leader = change.leader[mine] if shape % 2 else None
            values = change_values(
                ChangedRows(self._words[columns.topic[own]], columns.index[own], members, leader),
                CHANGE_VERSION,
            )
            encoded.append((PartitionChangeRecord.type_name, values))
        return encoded

    def apply(self, change: Change, now_ms: int, offset: int) -> None:
        """Applies a change and updates the sums. `offset`: of the batch."""
        columns, rows = self.columns, change.rows
        before, after = columns.isr[rows], change.isr
        leader_changed = change.leader != columns.leader[rows]
        changed = leader_changed | (after != before).any(axis=1)
        self.totals.leader_changes += int(leader_changed.sum())
        self.totals.isr_shrinks += int((before & ~after).any(axis=1).sum())
        self.totals.isr_expands += int((after & ~before).any(axis=1).sum())
        self.totals.partition_changes += int(changed.sum())
        led, full = change.leader != NO_BROKER, after.sum(axis=1) >= columns.min_isr[rows]
        self._account(rows, now_ms, led, ~full)
        columns.isr[rows] = after
        columns.leader[rows] = change.leader
        columns.leader_epoch[rows] += leader_changed
        columns.partition_epoch[rows] += changed
        self._sample(rows[changed], now_ms, offset)

    def note(self, row: int, now_ms: int, offset: int, *, led: bool) -> None:
        """Updates epochs and spans after a single change that the caller made to the columns."""
        columns = self.columns
        columns.leader_epoch[row] += led
        columns.partition_epoch[row] += 1
        self.totals.partition_changes += 1
        rows = np.array([row], dtype=np.int64)
        under = columns.isr[rows].sum(axis=1) < columns.min_isr[rows]
        self._account(rows, now_ms, columns.leader[rows] != NO_BROKER, under)
        self._sample(rows, now_ms, offset)

    def _account(self, rows: Rows, now_ms: int, led: Bools, under: Bools) -> None:
        at, totals = self.columns, self.totals
        for since, begins, is_leaderless in (
            (at.leaderless_since, ~led, True),
            (at.under_since, under, False),
        ):
            open_now = since[rows] != _NEVER
            ended = rows[open_now & ~begins]
            lasted = int((now_ms - since[ended]).sum())
            since[ended] = _NEVER
            started = rows[~open_now & begins]
            since[started] = now_ms
            if is_leaderless:
                totals.leaderless_partition_ms += lasted
                totals.leaderless_spans += len(started)
            else:
                totals.under_min_isr_partition_ms += lasted
                totals.under_min_isr_spans += len(started)

    def close(self, end_ms: int) -> tuple[int, int]:
        """Closes open spans at `end_ms`. Returns how many partitions are
        leaderless and under their minimum."""
        open_spans = []
        for since in (self.columns.leaderless_since, self.columns.under_since):
            open_now = since[since != _NEVER]
            open_spans.append((len(open_now), int((end_ms - open_now).sum())))
        self.totals.leaderless_partition_ms += open_spans[0][1]
        self.totals.under_min_isr_partition_ms += open_spans[1][1]
        return open_spans[0][0], open_spans[1][0]

    # -- samples -------------------------------------------------------------------------------------

    def follow(self, rows: list[int], now_ms: int, offset: int) -> None:
        """Keeps every state of `rows` from now on, for the truth."""
        for row in rows:
            self.samples[row] = []
        self._sample(np.array(rows, dtype=np.int64), now_ms, offset)

    def _sample(self, rows: Rows, now_ms: int, offset: int) -> None:
        if not self.samples:
            return
        for row in rows.tolist():
            states = self.samples.get(row)
            if states is not None:
                states.append(
                    {
                        "batch_offset": offset,
                        "time_ms": now_ms,
                        "leader": int(self.columns.leader[row]),
                        "isr": self.isr_of(row),
                        "leader_epoch": int(self.columns.leader_epoch[row]),
                        "partition_epoch": int(self.columns.partition_epoch[row]),
                    }
                )
