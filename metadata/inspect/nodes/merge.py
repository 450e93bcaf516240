"""The logs of a quorum's nodes side by side, and as one log: what each has, and where they diverge.

Owns the comparison batch by batch and byte by byte (Raft's log matching: the same offset and epoch mean the
same content), which log is followed where they differ, and what one node lost that another has. `merged_log`
reads the result. Does not know what records mean. The logs are read once, side by side.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from metaquorum.metadata.errors import InspectError
from metaquorum.metadata.inspect.log.log import MetadataLog
from metaquorum.metadata.inspect.nodes.lost import LostCommitted, find_losses, holding, known_committed
from metaquorum.metadata.inspect.nodes.nodes import log_end, short_names
from metaquorum.metadata.inspect.nodes.stream import NodeStream
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
    have."""

    nodes: list[NodeView]
    pieces: list[MergedRange] = field(default_factory=list)
    holes: list[tuple[int, int]] = field(default_factory=list)
    losses: list[LostCommitted] = field(default_factory=list)
    compared: int = 0

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


def compare_nodes(logs: Sequence[MetadataLog]) -> NodesReport:
    """Reads the logs side by side. Raises InspectError for logs that have nothing in common."""
    return _Comparison(logs).run()


class _Comparison:
    def __init__(self, logs: Sequence[MetadataLog]) -> None:
        self._names = short_names(logs)
        self._logs = logs
        self._streams = [NodeStream(log, at) for at, log in enumerate(logs)]
        self._departures: dict[int, Departure] = {}
        self._holes: list[tuple[int, int]] = []
        self._pieces: list[MergedRange] = []
        self._compared = 0
        self._at: int | None = None

    def run(self) -> NodesReport:
        while there := self._there():
            base = min(stream.base for stream in there)
            if self._at is not None and base > self._at:
                self._holes.append((self._at, base))
            self._at = base
            group = [stream for stream in there if stream.base == base]
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
        found = []
        for stream in self._streams:
            if stream.number in self._departures:
                continue
            if self._at is not None:
                stream.skip_below(self._at)
            if stream.current is not None:
                found.append(stream)
        return found

    def _same_runs(self, group: list[NodeStream], there: list[NodeStream]) -> bool:
        """Whether all have the same run of batches, and no other stream begins inside it."""
        runs = [stream.current for stream in group]
        first = runs[0]
        if not isinstance(first, BatchRun):
            return False
        if any(first.base_offset < stream.base < first.next_offset for stream in there):
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
            most = Counter(contents).most_common(1)[0][0]
            for stream, content in zip(group, contents, strict=True):
                if content != most:
                    stream.problem(f"the leader epoch of the batch at offset {stream.base} is damaged")
            right = [stream for stream, content in zip(group, contents, strict=True) if content == most]
            self._follow(group, group[0].next_offset, right)
            return
        self._part(group, contents)

    def _part(self, group: list[NodeStream], contents: list[bytes]) -> None:
        """Follows the later epoch; within one epoch, the most common content, or else the log
        with the newest end."""
        latest = max(stream.epoch for stream in group)
        both = zip(group, contents, strict=True)
        later = [(stream, content) for stream, content in both if stream.epoch == latest]
        often = Counter(content for _, content in later)
        winner, right = max(later, key=lambda one: (often[one[1]], log_end(self._logs[one[0].number])))
        for stream, content in zip(group, contents, strict=True):
            if content == right:
                continue
            self._refuse_strangers(stream, winner)
            kind = EPOCHS if stream.epoch != latest else BYTES
            place, epoch = stream.base, stream.epoch
            stream.run_out()
            self._departures[stream.number] = Departure(
                kind=kind,
                offset=place,
                end_offset=stream.end_offset,
                epoch=epoch,
                other=self._names[winner.number],
                other_epoch=latest,
                committed=_committed_from(self._logs[stream.number], place, epoch),
                undone=stream.sets.undone_from(place) if kind == EPOCHS else (),
            )

    def _refuse_strangers(self, stream: NodeStream, winner: NodeStream) -> None:
        identities = [self._logs[one.number].identity for one in (stream, winner)]
        known = {one.cluster_id for one in identities if one is not None and one.cluster_id is not None}
        if self._compared == 0 and not (len(known) == 1 and None not in identities):
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
        sound = [stream for stream in right or group if not stream.was_put_right] or group
        last = self._pieces[-1] if self._pieces else None
        if last is not None and last.end == start and any(one.number == last.source for one in sound):
            self._pieces[-1] = MergedRange(source=last.source, start=last.start, end=end)
        else:
            self._pieces.append(MergedRange(source=sound[0].number, start=start, end=end))
        for stream in group:
            stream.advance()
        self._at = end

    def _report(self) -> NodesReport:
        report = NodesReport(
            nodes=[self._view(stream) for stream in self._streams],
            pieces=self._pieces,
            holes=self._holes,
            losses=find_losses(
                [
                    holding(log, stream.end_offset, stream.epochs, stream.sets)
                    for log, stream in zip(self._logs, self._streams, strict=True)
                ]
            ),
            compared=self._compared,
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
            lost=[Lost(start=low, end=high, by=self._holder(low, high)) for low, high in stream.missing],
            departure=self._departures.get(stream.number),
        )

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
