"""The events of the quorum's own records: elections, voter sets, the finalized kraft.version."""

from __future__ import annotations

from metaquorum.metadata.inspect.causes.elections import CHANGED_LEADER, ELECTIONS, election_causes
from metaquorum.metadata.inspect.causes.rule import DETAIL, INFO
from metaquorum.metadata.inspect.causes.table import severity_of
from metaquorum.metadata.inspect.log.quorum import QuorumView
from metaquorum.metadata.inspect.log.voters import changes_text, ids_text, voter_ids
from metaquorum.metadata.inspect.timeline.event_groups import Grouped
from metaquorum.metadata.records import control
from metaquorum.metadata.records.control import Voter


class QuorumEvents:
    """Follows the quorum; every record produces one event."""

    def __init__(self, quorum: QuorumView | None) -> None:
        """`quorum` is the state before the first record; None if unknown."""
        self._leader: int | None = None
        self._epoch: int | None = None
        self._voters: tuple[Voter, ...] | None = None
        self._kraft_version: int | None = None
        if quorum is not None:
            self.learn(quorum)

    def learn(self, quorum: QuorumView) -> None:
        """Takes the quorum's state from a snapshot, or from the log before the first event."""
        if quorum.has_leader:
            self._leader, self._epoch = quorum.leader_id, quorum.epoch
        if quorum.voter_set:
            self._voters, self._kraft_version = quorum.voter_set, quorum.kraft_version

    def forget(self) -> None:
        """Forgets the state: the lost records may include an election or a voter set."""
        self._leader = self._epoch = self._voters = None

    def follows(self, epoch: int) -> None:
        """The records before the first election were of `epoch`."""
        if self._epoch is None:
            self._epoch = epoch

    def election(
        self, offset: int, record: control.LeaderChangeMessage, epoch: int, silence_ms: int | None, level: int
    ) -> Grouped:
        """`silence_ms` and the metadata.version are the arguments of `election_causes`. Up to Kafka 3.5, a
        cluster's first records precede the election of the controller that wrote them."""
        leader = record.leader_id
        ids = ",".join(str(voter.voter_id) for voter in record.voters)
        causes = election_causes(record, epoch, self._leader, self._epoch, silence_ms, level)
        rules = [cause.rule for cause in causes]
        rule = next((one for one in rules if one in CHANGED_LEADER), rules[-1])
        text = f"controller {leader} leads (voters {ids})"
        for cause in causes[1:]:
            text += f"; {cause.fact}" + (f"; {cause.doubt}" if cause.doubt else "")
        wrote_before = self._epoch == epoch
        self._leader, self._epoch = leader, epoch
        if not self._kraft_version:
            self._voters = tuple(
                Voter(voter_id=one.voter_id, voter_directory_id=one.voter_directory_id)
                for one in record.voters
            )
        return Grouped(
            offset=offset,
            kind="election",
            entity=f"controller/{leader}",
            text=text,
            severity=severity_of(ELECTIONS, rule, INFO),
            rule=rule,
            entities=("quorum",),
            span_ms=None if silence_ms == -1 or wrote_before else silence_ms,
        )

    def voters(self, offset: int, record: control.VotersRecord) -> Grouped:
        """A leader writes the set again when its epoch begins; then nothing changed."""
        before, self._voters = self._voters, record.voters
        was_static, self._kraft_version = not self._kraft_version, max(self._kraft_version or 0, 1)
        changed = changes_text(before, record.voters)
        text = f"voters are {ids_text(record.voters)}"
        if changed:
            text += f": {changed}"
        elif before is not None and not was_static:
            return _told(offset, "voters repeated", f"{text}, as before", severity=DETAIL)
        concerned = set(voter_ids(before or ())) ^ set(voter_ids(record.voters))
        entities = tuple(f"controller/{one}" for one in sorted(concerned))
        return _told(offset, "voters changed", text, entities=entities)

    def kraft_version(self, offset: int, record: control.KRaftVersionRecord) -> Grouped:
        """A leader writes kraft.version again, too."""
        before, self._kraft_version = self._kraft_version, record.kraft_version
        severity = DETAIL if before == record.kraft_version else INFO
        return _told(
            offset, "feature", f"kraft.version is at level {record.kraft_version}", severity=severity
        )


def _told(
    offset: int, kind: str, text: str, *, severity: str = INFO, entities: tuple[str, ...] = ()
) -> Grouped:
    return Grouped(offset, kind, "quorum", text, severity, None, entities)
