"""Rare states that a run has reached. A simulator that never reaches them proves nothing about them."""

from __future__ import annotations

from collections import Counter
from typing import Any

from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.requests.partitions import AlterPartitionResponse
from metaquorum.metadata.requests.status import BrokerState
from metaquorum.raft.effects import ResetLog, TruncateLog

REQUIRED = (
    "log truncated",
    "snapshot fetched and installed",
    "resigned with writes pending",
    "broker fenced itself",
    "stale broker epoch refused",
    "duplicate broker refused",
    "leader paused past the session timeout",
    "unsynced data lost",
    "controlled shutdown finished",
    "broker session expired",
    "snapshot fetched and loaded by a controller",
    "linearizable read answered",
    "leadership transferred",
    "heartbeat forged",
    "process stood still",
    "step left events for the next",
    "step waited for more events",
    "stranger sent VoteRequest",
    "stranger sent BeginQuorumEpochRequest",
    "stranger sent EndQuorumEpochRequest",
    "stranger sent FetchRequest",
)

REQUIRED_WITH_LOAD = (
    "ISR change answered NONE",
    "ISR change answered INVALID_UPDATE_VERSION",
    "ISR change answered FENCED_LEADER_EPOCH",
    "ISR change answered INELIGIBLE_REPLICA",
    "ISR change answered NEW_LEADER_ELECTED",
    "ISR shrunk by its leader",
    "ISR grew after a bounce",
    "last in-sync replica kept without a leader",
    "leaderless partition led again",
    "unclean election",
    "leader recovered",
    "leader elected on request",
    "directory death moved a leader",
    "last directory died",
    "replica moved to another directory",
    "reassignment completed",
    "reassignment completed under failure",
    "reassignment cancelled under failure",
    "reassignment replaced under failure",
    "failover between the batches of one fence",
    "controlled shutdown interrupted by failover",
    "controlled shutdown granted after its moves were seen",
    "broker unregistered",
    "partitions added",
    "id returned after a lost disk",
    "broker id handed out: new",
    "broker id handed out: binding",
    "loss of a disk accepted: NONE",
)

REQUIRED_WITH_COPIES = (
    "directory replaced by an older copy",
    "committed records overwritten",
    "node stopped over lost committed records",
    "did not lead while a voter knew better",
)

REQUIRED_WITH_VOTERS = (
    *(f"{count} voters in force" for count in range(1, 8)),
    "voter added",
    "voter removed",
    "voter updated",
    "voter added while the leader changes",
    "voter removed while the leader changes",
    "change of voters undone by truncation",
    "leader removed itself",
    "stood by a lone removal",
    "removed voter that did not hear of it asked for votes",
    "candidate with another set than the committed one",
    "voted for a node that its log does not name",
    "kraft.version upgraded",
    "disk of a voter emptied",
    "directory of a voter replaced",
    "host renamed",
    "static voters followed through bootstrap servers",
    "repaired after healing",
    "snapshot fetched with its voters",
    "directory rolled back to an older copy",
    "forgetful directory found out and replaced",
)

REQUIRED_WITH_DATA = (
    "ISR shrunk",
    "ISR expanded",
    "log cut by epoch",
    "log started over",
    "unclean election",
    "LOST sent",
    "directory died",
    "directory hung",
    "directory came back",
    "directory death moved a leader",
    "all brokers lost power at once",
    "unsynced records lost",
    "duplicate batch acknowledged",
    "batch of an earlier leader acknowledged",
    "producer state rebuilt",
    "reader out of range",
    "reassignment completed",
    "controlled shutdown finished",
    "produce answered NOT_LEADER_OR_FOLLOWER",
    "produce answered NOT_ENOUGH_REPLICAS",
    "produce answered NOT_ENOUGH_REPLICAS_AFTER_APPEND",
    "produce answered KAFKA_STORAGE_ERROR",
    "last known leader elected",
    "broker served on without a lease",
    "damaged replica found",
    "damaged replica came back whole",
    "replica moved to another directory",
)

REQUIRED_WITH_COMBINED = (
    "combined node crashed while its controller was active",
    "combined node crashed while it led partitions",
    "combined node stopped in order",
    "combined node: its broker stopped before its controller",
    "directory died",
    "leader recovered",
)

REQUIRED_WITH_FOREIGN = (
    "Kafka's broker registered",
    "Kafka's broker registered again",
    "Kafka's broker serves",
    "Kafka's broker serves on while it is fenced",
    "Kafka's broker stopped in order",
    "Kafka's broker fetched a snapshot",
    "Kafka's AlterPartition answered NONE",
    "Kafka's AlterPartition answered FENCED_LEADER_EPOCH",
)

REQUIRED_WITH_MIXED = (
    *(f"Kafka's voter is {role}" for role in ("candidate", "leader", "follower", "resigned", "voted")),
    "Kafka's voter fetched a snapshot",
    "Kafka's voter cut its log",
    "Kafka's voter led the healed quorum",
    "Kafka's controller is active",
    "Kafka's controller wrote the first records",
    "Kafka's controller created a topic",
    "Kafka's controller wrote a snapshot",
    "log truncated",
    "linearizable read answered",
)

REQUIRED_WITH_CHANGES = (
    *(f"{count} voters in force" for count in range(1, 6)),
    "voter of Kafka's added",
    "voter of Kafka's removed",
    "disk of Kafka's emptied",
    "directory of a voter replaced",
    "host renamed",
    "Kafka's voter added a voter",
    "Kafka's voter removed a voter",
    "Kafka's voter updated a voter",
    "Kafka's voter removed itself",
    "Kafka's voter left as a leader that was removed",
    "Kafka's voter asked for an update of its entry",
    "Kafka's voter undid a change of voters",
    "Kafka's voter voted for a node that its log does not name",
    "Kafka's voter wrote its voters with its epoch",
    "Kafka's voter fetched a snapshot with its voters",
    "Kafka's voter led the healed quorum",
    "Kafka's leader refused a change: REQUEST_TIMED_OUT",
    "Kafka's leader refused a change: NOT_LEADER_OR_FOLLOWER",
    "change of voters undone by truncation",
    "removed voter that did not hear of it asked for votes",
    "voted for a node that its log does not name",
    "leader removed itself",
    "voter added while the leader changes",
    "voter removed while the leader changes",
    "snapshot fetched with its voters",
    "repaired after healing",
)

REQUIRED_WITH_KAFKA = (
    "record that cannot be read is in an internal topic",
    "record that cannot be read left out",
    "transaction committed",
    "transaction aborted",
    "transaction ended by its coordinator",
    "producer fenced",
    "producer replaced",
    "coordinator moved with a transaction under way",
    "coordinator moved before the markers were written",
    "markers sent by a second coordinator",
    "copies checked",
    "group assigned",
    "offset committed",
    "commit in doubt",
    "member left",
    "member gave partitions up",
    "member told NOT_COORDINATOR",
    "segment compacted",
    "batch compacted away",
    "compacted log cut",
    "leader of a cleaned log",
)


class Marks:
    """Counts of marks in one run."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def add(self, mark: str) -> None:
        self.counts[mark] += 1

    def answered(self, response: Any) -> None:
        if isinstance(response, AlterPartitionResponse):
            for result in response.results:
                self.add(f"ISR change answered {result.error.name}")
        if not isinstance(response, ApiError):
            return
        match response.code:
            case ErrorCode.STALE_BROKER_EPOCH:
                self.add("stale broker epoch refused")
            case ErrorCode.DUPLICATE_BROKER_REGISTRATION:
                self.add("duplicate broker refused")
            case _:
                self.add(f"answered {response.code.name}")

    def log_cut(self, effect: TruncateLog | ResetLog) -> None:
        self.add("log truncated" if isinstance(effect, TruncateLog) else "snapshot fetched and installed")

    def broker_moved(self, old: BrokerState, new: BrokerState, reason: str) -> None:
        self.add(f"broker {old.name} -> {new.name}")
        if old.serves and not new.serves and not new.ended:
            self.add("broker fenced itself" if "no heartbeat was answered" in reason else "broker was fenced")


REQUIRED_WITH_JOINING = (
    "ours was made a voter after it asked Kafka's leader",
    "ours was made a voter after it asked a leader of ours",
    "directory of a voter replaced",
)
