"""Who leads the quorum, as the log's control records say it. Images hold no control records, so tools keep
this beside them. Knows no files."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from metadata import control_records as control
from metadata.batches import DecodedRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumView:
    """The newest election up to a place of the log; -1 and empty where no record said it.

    `voters` are node ids; `offset` is that of the record that began the leader's epoch, `time_ms` its time.
    """

    leader_id: int = -1
    epoch: int = -1
    offset: int = -1
    time_ms: int = -1
    voters: tuple[int, ...] = ()
    kraft_version: int = 0

    @property
    def is_known(self) -> bool:
        """False before the first election that was read."""
        return self.offset >= 0

    def after(self, epoch: int, records: Iterable[DecodedRecord]) -> QuorumView:
        """The view after the records of a control batch of `epoch`."""
        view = self
        for decoded in records:
            match decoded.record:
                case control.LeaderChangeMessage(leader_id=leader_id, voters=voters):
                    view = replace(
                        view,
                        leader_id=leader_id,
                        epoch=epoch,
                        offset=decoded.offset,
                        time_ms=decoded.timestamp_ms,
                        voters=tuple(sorted(voter.voter_id for voter in voters)) or view.voters,
                    )
                case control.KRaftVersionRecord(kraft_version=version):
                    view = replace(view, kraft_version=version)
                case control.VotersRecord(voters=voters):
                    view = replace(view, voters=tuple(sorted(voter.voter_id for voter in voters)))
        return view

    def tree(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "leader": self.leader_id,
            "epoch": self.epoch,
            "sinceOffset": self.offset,
            "sinceMs": self.time_ms,
            "voters": list(self.voters),
            "kraftVersion": self.kraft_version,
        }
