"""Mistakes in transactions: partitions' leaders, their logs, and coordinators."""

from __future__ import annotations

from tests.planted.bug import Bug

LEADER = "tests/unit/broker/test_replica_transactions.py"
STATE = "tests/unit/broker/test_transaction_state.py"
CRASH = "tests/properties/test_directory_store_crash.py"

TRANSACTION_BUGS = (
    Bug(
        name="open-transaction-is-read",
        breaks="read_committed reads up to the last stable offset",
        source="KIP-98",
        file="broker/replica/partition/local_log.py",
        old="        return min(end, self.log.last_stable_offset) if self.reader.read_committed else end\n",
        new="        return end\n",
        caught_by=(LEADER,),
    ),
    Bug(
        name="ended-by-an-uncommitted-marker",
        breaks="a transaction is open until its marker is below the high watermark",
        source="KIP-98",
        file="broker/replica/partition/local_log.py",
        old="        while decided and decided[0][1] < self.high_watermark:\n",
        new="        while decided and decided[0][1] < self.end:\n",
        caught_by=(LEADER,),
    ),
    Bug(
        name="guard-outlives-a-marker",
        breaks="a batch that was verified before a marker does not begin a transaction after it",
        source="KIP-890",
        file="broker/replica/partition/leader.py",
        old="        self._verification.forget(header.producer_id)\n",
        new="        self._verification.forget(header.producer_id if marker is None else -1)\n",
        caught_by=(LEADER,),
    ),
    Bug(
        name="verified-where-nobody-led",
        breaks="a batch is judged by what its leader knew when it was verified, or is sent again",
        source="KIP-890",
        file="broker/replica/partition/partition.py",
        old="            return VerificationGuard(key=asked.key, guard=NOT_LED)\n",
        new="            return VerificationGuard(key=asked.key)\n",
        caught_by=(LEADER,),
    ),
    Bug(
        name="guard-of-an-earlier-leader",
        breaks="a guard that was given before another broker led is refused for a retry",
        source="KIP-890",
        file="broker/replica/partition/leader.py",
        old="        self._first = self._next\n",
        new="        self._first = 1\n",
        caught_by=(LEADER,),
    ),
    Bug(
        name="marker-of-a-former-coordinator",
        breaks="a coordinator that was replaced ends no transaction",
        source="KIP-98",
        file="storage/partition/producers.py",
        old="marker.coordinator_epoch < producer.coordinator_epoch:\n",
        new="marker.coordinator_epoch < -1:\n",
        caught_by=(LEADER,),
    ),
    Bug(
        name="producer-expires-in-its-transaction",
        breaks="a producer with an open transaction is not forgotten",
        source="KIP-98",
        file="storage/partition/producers.py",
        old="            if each.seen_ms < before_ms and each.open_from < 0\n",
        new="            if each.seen_ms < before_ms\n",
        caught_by=(LEADER,),
    ),
    Bug(
        name="snapshot-before-the-aborted-transactions",
        breaks="a producer snapshot is in its place only after the .txnindex files below it",
        source="docs/partition-storage.md",
        file="storage/partition/partition_log.py",
        old="        self._steps = (aborted, files)\n",
        new="        self._steps = (files, aborted)\n",
        caught_by=(CRASH,),
    ),
    Bug(
        name="markers-of-a-decision-that-was-only-read",
        breaks="a new coordinator sends markers after what it read is committed",
        source="docs/divergence.md",
        file="broker/coordinator/transaction.py",
        old="        self._resend(prepared, now.ms)\n",
        new="        return Decision(effects=tuple(self._markers(self.transactions[n]) for n in prepared))\n",
        caught_by=(STATE,),
    ),
    Bug(
        name="fenced-producer-goes-on",
        breaks="a producer of an older epoch changes no transaction",
        source="KIP-98",
        file="broker/coordinator/transaction.py",
        old="        if current.epoch != body.producer_epoch:\n",
        new="        if current.epoch < body.producer_epoch:\n",
        caught_by=(STATE,),
    ),
    Bug(
        name="epoch-not-raised-by-a-second-process",
        breaks="a process that begins with an open transaction fences the one before",
        source="KIP-98, KIP-360",
        file="broker/coordinator/transaction.py",
        old="            fenced = current.ended(committed=False, fence=True, now_ms=now.wall_ms)\n",
        new="            fenced = current.ended(committed=False, now_ms=now.wall_ms)\n",
        caught_by=(STATE,),
    ),
    Bug(
        name="the-second-commit-of-offsets-is-out-of-order",
        breaks="a transaction takes offsets of its groups any number of times",
        source="KIP-98",
        file="broker/replica/partition/leader.py",
        old="producers.check(header, sequenced=not by_coordinator)",
        new="producers.check(header, sequenced=True)",
        caught_by=("tests/unit/broker/test_replica_transactions.py",),
    ),
)
