"""The quorum's fields for a `why` chain: after its records so far, and before the newest."""

from __future__ import annotations

from typing import Any

from metaquorum.metadata.inspect.causes.elections import election_causes
from metaquorum.metadata.inspect.causes.rule import Cause
from metaquorum.metadata.inspect.log.quorum import QuorumView
from metaquorum.metadata.inspect.log.voters import changes_text, voter_ids, voter_set_texts
from metaquorum.metadata.records.control import (
    KRaftVersionRecord,
    LeaderChangeMessage,
    QuorumRecord,
    Voter,
    VotersRecord,
)


class QuorumFields:
    """`now` and `before` have the known fields, named as in `QuorumView.tree`."""

    def __init__(self) -> None:
        self.now: dict[str, Any] = {}
        self.before: dict[str, Any] = {}
        self._voters: tuple[Voter, ...] | None = None

    def lose(self) -> None:
        """Forgets the fields: the lost records may include an election or a voter set."""
        self._voters = None
        self.now = {name: value for name, value in self.now.items() if name == "kraftVersion"}

    def learn(self, quorum: QuorumView) -> None:
        """Takes the voters from a snapshot (KIP-853)."""
        if quorum.voter_set:
            self.now["kraftVersion"] = quorum.kraft_version
            self._set(quorum.voter_set)

    def noted(
        self, record: QuorumRecord, epoch: int, silence_ms: int | None, level: int
    ) -> tuple[Cause, ...]:
        """Takes the next record and returns its causes; for the last two arguments, see `election_causes`."""
        match record:
            case LeaderChangeMessage():
                return self._elected(record, epoch, silence_ms, level)
            case VotersRecord():
                return self._voters_set(record)
        return self._version_set(record)

    def _elected(
        self, record: LeaderChangeMessage, epoch: int, silence_ms: int | None, level: int
    ) -> tuple[Cause, ...]:
        """A leader's first record; see `election_causes`."""
        self.before = dict(self.now)
        causes = election_causes(
            record, epoch, self.now.get("leader"), self.now.get("epoch"), silence_ms, level
        )
        self.now |= {"leader": record.leader_id, "epoch": epoch}
        if not self.now.get("kraftVersion"):
            self._voters = tuple(
                Voter(voter_id=one.voter_id, voter_directory_id=one.voter_directory_id)
                for one in record.voters
            )
            self.now["voters"] = list(voter_ids(self._voters))
        return causes

    def _voters_set(self, record: VotersRecord) -> tuple[Cause, ...]:
        """The whole voter set. The log shows which leader wrote it, not which client requested the change."""
        self.before = dict(self.now)
        told = changes_text(self._voters, record.voters)
        self._set(record.voters)
        text = f"the voters are {self.now['voters']}"
        if self.before.get("voterSet") == self.now["voterSet"]:
            return (Cause(rule="changed-nothing", text=f"{text}, which changed nothing"),)
        return (Cause(rule="set", text=f"{text}: {told}" if told else text),)

    def _version_set(self, record: KRaftVersionRecord) -> tuple[Cause, ...]:
        """The finalized kraft.version."""
        self.before = dict(self.now)
        self.now["kraftVersion"] = record.kraft_version
        text = f"kraft.version is {record.kraft_version}"
        if self.before.get("kraftVersion") == record.kraft_version:
            return (Cause(rule="changed-nothing", text=f"{text}, which changed nothing"),)
        return (Cause(rule="set", text=text),)

    def _set(self, voters: tuple[Voter, ...]) -> None:
        self._voters = voters
        self.now |= {"voters": list(voter_ids(voters)), "voterSet": voter_set_texts(voters)}
