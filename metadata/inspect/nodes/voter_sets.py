"""The voter sets of one log (KIP-853): which was in force where, by its control records and snapshots."""

from __future__ import annotations

from bisect import bisect_right

from metaquorum.metadata.inspect.log.log import MetadataLog
from metaquorum.metadata.inspect.log.quorum import quorum_in_snapshot
from metaquorum.metadata.inspect.log.voters import changes_text, ids_text
from metaquorum.metadata.records.batches import decode_readable
from metaquorum.metadata.records.control import Voter, VotersRecord
from metaquorum.storage.batches.batch import RecordBatch


class VoterSets:
    """Each set is in force from after its record on; there is none at kraft.version 0."""

    def __init__(self, log: MetadataLog) -> None:
        """Starts with the voter sets in the snapshots beside the log."""
        self._sets: dict[int, tuple[Voter, ...]] = {}
        for position in log.snapshots() if log.is_directory else ():
            found = quorum_in_snapshot(log.snapshot(position))
            if found.kraft_version and found.voter_set:
                self._sets[position.offset] = found.voter_set
        self._of_snapshots = frozenset(self._sets)

    def take(self, batch: RecordBatch) -> None:
        """Takes the next batch of the log."""
        if not batch.header.is_control:
            return
        for decoded in decode_readable(batch):
            if isinstance(decoded.record, VotersRecord):
                self._sets[decoded.offset + 1] = decoded.record.voters

    def at(self, end_offset: int) -> tuple[Voter, ...]:
        """The set in force for the records below `end_offset`; empty if the log does not have it."""
        places = sorted(self._sets)
        found = bisect_right(places, end_offset)
        return self._sets[places[found - 1]] if found else ()

    def undone_from(self, offset: int) -> tuple[str, ...]:
        """The voter sets lost if the log is truncated to `offset`, in words, newest last."""
        lines, before = [], self.at(offset)
        for end_offset in sorted(self._sets):
            if end_offset <= offset or end_offset in self._of_snapshots:
                continue
            changed = changes_text(before or None, self._sets[end_offset])
            how = f" ({changed})" if changed else ""
            lines.append(f"the voter set {ids_text(self._sets[end_offset])} of offset {end_offset - 1}{how}")
            before = self._sets[end_offset]
        return tuple(lines)
