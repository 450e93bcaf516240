"""The logs of a quorum's nodes side by side, and as one log: what each has, and where they diverge.

The same offset and epoch mean the same content (Raft's log matching), byte for byte. The logs are read once.

A log in which offsets or epochs run backwards is mended first: neither is covered by a batch's CRC, and
copies of whole batches are valid as well. As with the clock, the longest series of batches counts whose
offsets rise and whose epochs never fall; the rest is left out, and the other nodes have it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from metaquorum.metadata.errors import InspectError
from metaquorum.metadata.inspect.log.clock import longest_series
from metaquorum.metadata.inspect.log.coverage import offsets_text
from metaquorum.metadata.inspect.log.log import MetadataLog, damage_line
from metaquorum.metadata.inspect.log.quorum import VoterSets
from metaquorum.metadata.inspect.nodes.lost import (
    Holding,
    LostCommitted,
    find_losses,
    holding,
    known_committed,
)
from metaquorum.metadata.inspect.nodes.nodes import log_end, short_names
from metaquorum.metadata.inspect.walk.rewrite import fitting_header, with_header
from metaquorum.metadata.records.control import Voter
from metaquorum.storage.batches.batch import RecordBatch
from metaquorum.storage.errors import StorageError
from metaquorum.storage.files.quorum_state import load_quorum_state
from metaquorum.storage.log.epochs import EpochTable
from metaquorum.storage.log.reader import Damage
from metaquorum.storage.log.runs import BatchRun

EPOCHS, BYTES = "epochs differ", "bytes differ"

_CRC_COVERS = 21
"""A batch's CRC covers it from this byte on; base offset and leader epoch are before it."""


class MergedRange(msgspec.Struct, frozen=True, kw_only=True):
    """Offsets `start` up to but not including `end` are read from log number `source`."""

    source: int
    start: int
    end: int


class Departure(msgspec.Struct, frozen=True, kw_only=True):
    """Where a node's log diverges from the others.

    EPOCHS: the other log's records from `offset` on have a later epoch, so the records up to `end_offset`
    were never committed, unless the node knew those below `committed` to be: then committed records were lost
    (0: it knew of none). BYTES: same epoch, which Raft rules out. `undone` are the voter sets among those
    records."""

    kind: str
    offset: int
    end_offset: int
    epoch: int
    other: str
    other_epoch: int
    committed: int = 0
    undone: tuple[str, ...] = ()

    @property
    def is_fault(self) -> bool:
        """Whether this cannot happen in a quorum whose nodes keep their directories."""
        return self.kind == BYTES or self.committed > 0


class Parting(msgspec.Struct, frozen=True, kw_only=True):
    """A node's departure with the first batch that differs, and what the log that is followed has there."""

    node: MetadataLog
    departure: Departure
    own: RecordBatch
    other_log: MetadataLog
    other: RecordBatch


class Lost(msgspec.Struct, frozen=True, kw_only=True):
    """Offsets that a node's log lacks, through damage or a missing file; the node `by` has them."""

    start: int
    end: int
    by: str | None


@dataclass(slots=True, kw_only=True)
class NodeView:
    """One node's log in comparison. `end_offset` and `epoch` are those of its last whole batch; `problems`
    are lines about damage, limited in number."""

    name: str
    path: str
    node_id: int | None
    start_offset: int
    end_offset: int
    epoch: int
    behind: int = 0
    problems: list[str] = field(default_factory=list)
    lost: list[Lost] = field(default_factory=list)
    departure: Departure | None = None


@dataclass(slots=True, kw_only=True)
class NodesReport:
    """All nodes, the pieces that make up one log, and the ranges (`start`, `end`) that no node has. `losses`
    are committed records that are certainly lost; `compared` counts the offsets that at least two nodes
    have, and `batches_compared` their batches. `mendings` are how logs are read whose offsets or epochs run
    backwards; `voters` is the voter set at the end of the longest log (kraft.version 1)."""

    nodes: list[NodeView]
    pieces: list[MergedRange] = field(default_factory=list)
    holes: list[tuple[int, int]] = field(default_factory=list)
    losses: list[LostCommitted] = field(default_factory=list)
    compared: int = 0
    batches_compared: int = 0
    partings: list[Parting] = field(default_factory=list)
    holdings: list[Holding] = field(default_factory=list)
    voters: tuple[Voter, ...] = ()
    mendings: list[Mending | None] = field(default_factory=list)

    @property
    def start_offset(self) -> int:
        return self.pieces[0].start if self.pieces else 0

    @property
    def end_offset(self) -> int:
        return self.pieces[-1].end if self.pieces else 0

    @property
    def common_end(self) -> int:
        """Below this offset, all nodes whose logs do not diverge have, or had, the same records."""
        return min((one.end_offset for one in self.nodes if one.departure is None), default=0)

    @property
    def is_whole(self) -> bool:
        """No node lost anything, and none contradicts the others about one leader's records."""
        return not self.holes and not any(
            one.lost or one.problems or (one.departure is not None and one.departure.is_fault)
            for one in self.nodes
        )


def compare_nodes(logs: Sequence[MetadataLog], *, refuse_strangers: bool = True) -> NodesReport:
    """Reads the logs side by side. Raises InspectError for logs that have nothing in common, unless
    `refuse_strangers` is false: then they diverge at their first offset."""
    mendings: list[Mending | None] = [None] * len(logs)
    while True:
        try:
            return _Comparison(logs, mendings, refuse_strangers).run()
        except OutOfOrderError as error:
            log = logs[error.number]
            mendings[error.number] = mend(log, short_names(logs)[error.number])


class _Comparison:
    def __init__(
        self, logs: Sequence[MetadataLog], mendings: Sequence[Mending | None], refuse_strangers: bool
    ) -> None:
        self._names = short_names(logs)
        self._logs = logs
        self._mendings = mendings
        self._streams = [NodeStream(log, at, mendings[at]) for at, log in enumerate(logs)]
        self._refuses_strangers = refuse_strangers
        self._partings: list[Parting] = []
        self._batches_compared = 0
        self._epoch = 0
        self._departures: dict[int, Departure] = {}
        self._holes: list[tuple[int, int]] = []
        self._pieces: list[MergedRange] = []
        self._compared = 0
        self._merged_to: int | None = None

    def run(self) -> NodesReport:
        while there := self._there():
            base = min(stream.base for stream in there)
            if self._merged_to is not None and base > self._merged_to:
                self._holes.append((self._merged_to, base))
            self._merged_to = base
            group = [stream for stream in there if stream.base == base]
            if self._moved_back(group[0], there):
                continue
            if self._same_runs(group, there):
                self._follow(group, group[0].next_offset)
            elif any(stream.is_run for stream in group):
                for stream in group:
                    stream.split()
            else:
                self._batches(group)
        return self._report()

    def _there(self) -> list[NodeStream]:
        """Streams with more to read that have not diverged."""
        streams = []
        for stream in self._streams:
            if stream.number in self._departures:
                continue
            if self._merged_to is not None:
                stream.skip_below(self._merged_to)
            if stream.current is not None:
                streams.append(stream)
        return streams

    def _same_runs(self, group: list[NodeStream], there: list[NodeStream]) -> bool:
        """Whether all have the same run of batches, and no other stream begins inside it."""
        runs = [stream.current for stream in group]
        first = runs[0]
        if not isinstance(first, BatchRun):
            return False
        inside = range(first.base_offset, first.next_offset)
        if any(
            stream.base in inside[1:] or stream.end_offset in inside
            for stream in there
            if stream not in group
        ):
            return False
        content = _content(first)
        return all(isinstance(run, BatchRun) and _content(run) == content for run in runs[1:])

    def _batches(self, group: list[NodeStream]) -> None:
        contents = [stream.content for stream in group]
        if contents.count(contents[0]) == len(contents):
            self._follow(group, group[0].next_offset)
            return
        covered = [content[_CRC_COVERS:] for content in contents]
        if covered.count(covered[0]) == len(covered):  # an epoch was damaged: no CRC covers it
            self._follow(group, group[0].next_offset, self._with_right_epoch(group, contents))
            return
        self._part(group, contents)

    def _moved_back(self, first: NodeStream, there: list[NodeStream]) -> bool:
        """Whether a batch with a damaged base offset behind its log's end was found: by its records, it is
        the first one's."""
        own = first.current
        for stream in there:
            if not (isinstance(own, RecordBatch) and isinstance(stream.current, RecordBatch)):
                continue
            if stream.base == first.base or stream.end_offset != first.base:
                continue
            if stream.content[_CRC_COVERS:] != first.content[_CRC_COVERS:]:
                continue
            if stream.mending is None:
                raise OutOfOrderError(stream.number)
            place = f"{self._names[stream.number]}: the header of the batch at offset {first.base} is damaged"
            stream.put_right(own, f"{place}: base offset {stream.base} is put back to {first.base}")
            return True
        return False

    def _with_right_epoch(self, group: list[NodeStream], contents: list[bytes]) -> list[NodeStream]:
        """Of batches that differ only in their epochs, those that are right: the most, or else those that
        continue the epoch before them. The others are put right."""

        def rank(pair: tuple[NodeStream, bytes]) -> tuple[int, bool, bool]:
            stream, content = pair
            return contents.count(content), stream.epoch == self._epoch, stream.mending is None

        winner, most = max(zip(group, contents, strict=True), key=rank)
        for stream, content in zip(group, contents, strict=True):
            if content != most and isinstance(winner.current, RecordBatch):
                place = f"{self._names[stream.number]}: the header of the batch at offset {stream.base}"
                changed = f"leader epoch {stream.epoch} is put back to {winner.epoch}"
                stream.put_right(winner.current, f"{place} is damaged: {changed}")
        return [stream for stream, content in zip(group, contents, strict=True) if content == most]

    def _part(self, group: list[NodeStream], contents: list[bytes]) -> None:
        """Follows the later epoch; within one epoch, the most common content, or else the log
        with the newest end."""
        latest = max(stream.epoch for stream in group)
        self._batches_compared += 1
        both = zip(group, contents, strict=True)
        later = [(stream, content) for stream, content in both if stream.epoch == latest]
        often = Counter(content for _, content in later)
        winner, right = max(later, key=lambda one: (often[one[1]], log_end(self._logs[one[0].number])))
        for stream, content in zip(group, contents, strict=True):
            if content == right:
                continue
            self._refuse_strangers(stream, winner)
            own, other = stream.current, winner.current
            kind = EPOCHS if stream.epoch != latest else BYTES
            offset, epoch = stream.base, stream.epoch
            stream.run_out()
            departure = self._departures[stream.number] = Departure(
                kind=kind,
                offset=offset,
                end_offset=stream.end_offset,
                epoch=epoch,
                other=self._names[winner.number],
                other_epoch=latest,
                committed=_committed_from(self._logs[stream.number], offset, epoch),
                undone=stream.sets.undone_from(offset) if kind == EPOCHS else (),
            )
            if isinstance(own, RecordBatch) and isinstance(other, RecordBatch):
                parted, followed = (self._logs[one.number] for one in (stream, winner))
                self._partings.append(
                    Parting(node=parted, departure=departure, own=own, other_log=followed, other=other)
                )

    def _refuse_strangers(self, stream: NodeStream, winner: NodeStream) -> None:
        identities = [self._logs[one.number].identity for one in (stream, winner)]
        cluster_ids = {one.cluster_id for one in identities if one is not None and one.cluster_id is not None}
        if (
            self._refuses_strangers
            and self._compared == 0
            and not (len(cluster_ids) == 1 and None not in identities)
        ):
            names = [self._names[one.number] for one in (winner, stream)]
            raise InspectError(
                f"{names[0]} and {names[1]} differ from the first offset that both have ({stream.base}): "
                "they belong to different quorums; give the nodes of one quorum"
            )

    def _follow(self, group: list[NodeStream], end: int, right: list[NodeStream] | None = None) -> None:
        """Continues with what the group has in common, read from the same log as before if possible."""
        start = group[0].base
        if len(group) > 1:
            self._compared += end - start
            first = group[0].current
            self._batches_compared += first.batches_count if isinstance(first, BatchRun) else 1
        unchanged = [stream for stream in right or group if not stream.was_put_right] or group
        sound = [stream for stream in unchanged if stream.mending is None] or unchanged
        self._epoch = group[0].epoch
        last = self._pieces[-1] if self._pieces else None
        if last is not None and last.end == start and any(one.number == last.source for one in sound):
            self._pieces[-1] = MergedRange(source=last.source, start=last.start, end=end)
        else:
            self._pieces.append(MergedRange(source=sound[0].number, start=start, end=end))
        for stream in group:
            stream.advance()
        self._merged_to = end

    def _report(self) -> NodesReport:
        holdings = [
            holding(log, stream.end_offset, stream.epochs, stream.sets)
            for log, stream in zip(self._logs, self._streams, strict=True)
        ]
        longest = max(self._streams, key=lambda stream: stream.end_offset)
        report = NodesReport(
            nodes=[self._view(stream) for stream in self._streams],
            pieces=self._pieces,
            holes=self._holes,
            losses=find_losses(holdings, _voters(self._logs)),
            compared=self._compared,
            batches_compared=self._batches_compared,
            partings=self._partings,
            holdings=holdings,
            voters=longest.sets.at(longest.end_offset),
            mendings=list(self._mendings),
        )
        for node in report.nodes:
            if node.departure is None:
                node.behind = report.end_offset - node.end_offset
        return report

    def _view(self, stream: NodeStream) -> NodeView:
        log = self._logs[stream.number]
        return NodeView(
            name=self._names[stream.number],
            path=log.path,
            node_id=None if log.identity is None else log.identity.node_id,
            start_offset=stream.start_offset,
            end_offset=stream.end_offset,
            epoch=stream.last_epoch,
            problems=stream.problems,
            lost=[
                Lost(start=low, end=high, by=self._holder(low, high))
                for low, high in (*self._lost_beginning(log), *stream.missing)
            ],
            departure=self._departures.get(stream.number),
        )

    def _lost_beginning(self, log: MetadataLog) -> list[tuple[int, int]]:
        """What is lost before a log that begins late although no snapshot covers that."""
        begins, start = self._pieces[0].start if self._pieces else 0, log.start_offset
        if log.identity is None or not log.segments or start <= begins:  # a copy of some segments is whole
            return []
        covered = any(at.offset >= start and log.is_whole(at) for at in log.snapshots())
        return [] if covered else [(begins, start)]

    def _holder(self, low: int, high: int) -> str | None:
        """The node that a range is read from; None if no node has all of it."""
        if any(start < high and low < end for start, end in self._holes):
            return None
        piece = next((one for one in self._pieces if one.start <= low < one.end), None)
        return None if piece is None else self._names[piece.source]


def _content(run: BatchRun) -> bytes:
    return run.data[int(run.places[0]) : int(run.places[-1])]


def _committed_from(log: MetadataLog, offset: int, epoch: int) -> int:
    """The offset up to which the node knew the records from `offset`, of `epoch`, to be
    committed; 0 if it did not."""
    known = known_committed(log)
    return known.offset if known.offset > offset and known.epoch >= epoch else 0


def _voters(logs: Sequence[MetadataLog]) -> frozenset[int]:
    """The voters' ids from a quorum-state beside one of the logs; empty if there is none."""
    for log in logs:
        try:
            stored = load_quorum_state(log.disk, log.directory) if log.is_directory else None
        except StorageError:
            continue
        if stored is not None and stored.voters:
            return frozenset(stored.voters)
    return frozenset()


SHOWN_PROBLEMS = 20
Content = RecordBatch | BatchRun


class OutOfOrderError(Exception):
    """The offsets or epochs of log number `number` run backwards: it has to be mended before it is compared.
    Internal to this package."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Mending(msgspec.Struct, frozen=True):
    """What to change in a log while it is read, by the number of the batch in it: base offset and leader
    epoch, or None to leave the batch out. `problems` are lines about it."""

    changes: dict[int, tuple[int, int] | None]
    problems: list[str]

    def runs(self, log: MetadataLog) -> Iterator[RecordBatch | BatchRun | Damage]:
        """All of the log, mended."""
        numbers = sorted(self.changes)
        number = 0
        for item in log.runs():
            if isinstance(item, Damage):
                yield item
                continue
            count = item.batches_count if isinstance(item, BatchRun) else 1
            inside = numbers[bisect_left(numbers, number) : bisect_left(numbers, number + count)]
            low = 0
            for changed in inside:
                local = changed - number
                if low < local and isinstance(item, BatchRun):
                    yield item.part(low, local)
                batch = next(item.part(local, local + 1).batches()) if isinstance(item, BatchRun) else item
                header = self.changes[changed]
                if header is not None:
                    base_offset, epoch = header
                    yield with_header(
                        batch, batch.header._replace(base_offset=base_offset, leader_epoch=epoch)
                    )
                low = local + 1
            if low < count:
                yield item.part(low, count) if low and isinstance(item, BatchRun) else item
            number += count


def mend(log: MetadataLog, name: str) -> Mending:
    """How to read a log whose offsets or epochs run backwards. Reads all headers."""
    bases: list[int] = []
    ends: list[int] = []
    epochs: list[int] = []
    controls: set[int] = set()
    for item in log.runs():
        if isinstance(item, BatchRun):
            bases += item.offsets[:-1].tolist()
            ends += item.offsets[1:].tolist()
            epochs += item.epochs().tolist()
        elif isinstance(item, RecordBatch):
            if item.header.is_control:
                controls.add(len(bases))
            bases.append(item.header.base_offset)
            ends.append(item.header.next_offset)
            epochs.append(item.header.leader_epoch)
    changes: dict[int, tuple[int, int] | None] = {}
    problems: list[str] = []
    places = sorted(zip(bases, ends, strict=True))
    expected, before = log.start_offset, 0
    for number in range(len(bases) - 1):
        base, end, epoch = bases[number], ends[number], epochs[number]
        own, after = (base, end - base, epoch, number in controls), (bases[number + 1], epochs[number + 1])
        right = fitting_header(own, (*after, number + 1 in controls), expected, before)
        if right[0] != base and not _is_elsewhere(base, places):
            right = base, right[1]  # two batches are swapped
        if right != (base, epoch):
            changes[number] = bases[number], epochs[number] = right
            ends[number] = bases[number] + end - base
            words = ("base offset", base, right[0]), ("leader epoch", epoch, right[1])
            changed = "; ".join(
                f"{what} {old} is put back to {new}" for what, old, new in words if old != new
            )
            problems.append(
                f"{name}: the header of the batch at offset {bases[number]} is damaged: {changed}"
            )
        expected, before = ends[number], epochs[number]
    kept = _in_order(bases, ends, epochs)
    left_out = sorted(set(range(len(bases))).difference(kept))
    changes |= dict.fromkeys(left_out)
    problems += _left_out(name, left_out, bases, ends, epochs)
    return Mending(changes, problems)


def _is_elsewhere(base: int, places: list[tuple[int, int]]) -> bool:
    """Whether the log has an offset in another batch than the one that begins there, or ends before it."""
    at = bisect_left(places, (base, 0))
    is_twice = at + 1 < len(places) and places[at + 1][0] == base
    return is_twice or at + 1 == len(places) or (at > 0 and places[at - 1][1] > base)


def _in_order(bases: list[int], ends: list[int], epochs: list[int]) -> list[int]:
    """The numbers of the batches that count."""
    kept: list[int] = []
    end = 0
    for number in longest_series(bases, rises=True):
        if bases[number] >= end:
            kept.append(number)
            end = ends[number]
    return [kept[at] for at in longest_series([epochs[at] for at in kept])]


def _left_out(
    name: str, numbers: list[int], bases: list[int], ends: list[int], epochs: list[int]
) -> Iterator[str]:
    """A line for each series of batches that follow each other."""
    first = 0
    for position, number in enumerate(numbers):
        if (
            position + 1 < len(numbers)
            and numbers[position + 1] == number + 1
            and bases[number + 1] == ends[number]
        ):
            continue
        begin = numbers[first]
        after = f" after offset {ends[begin - 1] - 1}" if begin else ""
        what = f"{offsets_text(bases[begin], ends[number])} of epoch {epochs[begin]}"
        yield f"{name}: out of place{after}, and left out: {what}"
        first = position + 1


class NodeStream:
    """`current` is the next item: a batch, or a run of one-record batches; None after the last. Raises
    OutOfOrderError where offsets or epochs run backwards, unless the log is mended."""

    def __init__(self, log: MetadataLog, number: int, mending: Mending | None = None) -> None:
        self.number = number
        self.mending = mending
        self.problems: list[str] = [] if mending is None else mending.problems[:SHOWN_PROBLEMS]
        self.missing: list[tuple[int, int]] = []
        self.start_offset = self.end_offset = log.start_offset
        self.last_epoch = 0
        self.epochs = EpochTable()
        self.sets = VoterSets(log)
        self.was_put_right = False
        self._source: Iterator[RecordBatch | BatchRun | Damage] = (
            log.runs() if mending is None else mending.runs(log)
        )
        self._ahead: deque[Content] = deque()
        self.current: Content | None = None
        self._take()

    @property
    def base(self) -> int:
        """The next offset; valid only while `current` is not None."""
        current = self.current
        if current is None:
            raise RuntimeError("a log that ended has no next offset")
        return current.base_offset if isinstance(current, BatchRun) else current.header.base_offset

    @property
    def next_offset(self) -> int:
        current = self.current
        if current is None:
            return self.end_offset
        return current.next_offset if isinstance(current, BatchRun) else current.header.next_offset

    @property
    def is_run(self) -> bool:
        return isinstance(self.current, BatchRun)

    @property
    def epoch(self) -> int:
        """The leader epoch of the next item."""
        current = self.current
        if current is None:
            return self.last_epoch
        return current.epoch if isinstance(current, BatchRun) else current.header.leader_epoch

    @property
    def content(self) -> bytes:
        return bytes(self.current.data) if isinstance(self.current, RecordBatch) else b""

    def split(self) -> None:
        """Splits a run into its batches."""
        if isinstance(self.current, BatchRun):
            self._ahead.extendleft(reversed(list(self.current.batches())))
            self.current = self._ahead.popleft()

    def advance(self) -> None:
        """Moves past the current item; what is between it and the next one is missing here."""
        if self.epoch != self.last_epoch or not self.epochs.entries:
            self.epochs = self.epochs.append(self.epoch, self.base)
        if isinstance(self.current, RecordBatch):  # a run has no control batch
            self.sets.take(self.current)
        self.last_epoch = self.epoch
        self.end_offset = max(self.end_offset, self.next_offset)
        self._take()

    def skip_below(self, offset: int) -> None:
        """Skips items that go back to offsets already read."""
        while self.current is not None and self.base < offset:
            if self.is_run:
                self.split()
                continue
            self.problem(f"offset {self.base} appears again after offset {offset - 1}")
            self._take()

    def run_out(self) -> None:
        """Reads to the end without comparing."""
        while self.current is not None:
            self.advance()

    def put_right(self, batch: RecordBatch, line: str) -> None:
        """Takes another node's batch for the current one: only the header is damaged here."""
        if self.missing and self.missing[-1] == (self.end_offset, self.base):
            self.missing.pop()
        self.problem(line)
        self.current, self.was_put_right = batch, True

    def problem(self, line: str) -> None:
        if len(self.problems) < SHOWN_PROBLEMS:
            self.problems.append(line)

    def _take(self) -> None:
        self.was_put_right = False
        self.current = self._next()
        if self.current is None:
            return
        first = (
            next(self.current.part(0, 1).batches()) if isinstance(self.current, BatchRun) else self.current
        )
        falls = self.base < self.end_offset or first.header.leader_epoch < self.last_epoch
        if falls and self.mending is None:
            raise OutOfOrderError(self.number)
        if self.base > self.end_offset:
            self.missing.append((self.end_offset, self.base))

    def _next(self) -> Content | None:
        if self._ahead:
            return self._ahead.popleft()
        for item in self._source:
            if not isinstance(item, Damage):
                return item
            if not item.reason.startswith(("expected base offset", "expected leader epoch")):
                self.problem(damage_line(item))
        return None
