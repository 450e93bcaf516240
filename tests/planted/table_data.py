"""Mistakes in brokers that hold data: replication, log directories, producers' state, partition logs."""

from __future__ import annotations

from tests.planted.bug import Bug

FETCH = "tests/unit/broker/test_replica_fetch.py"
FOLLOWER = "tests/unit/broker/test_replica_follower.py"
ISR = "tests/unit/broker/test_replica_isr.py"
PRODUCE = "tests/unit/broker/test_replica_produce.py"
MOVES = "tests/unit/broker/test_moves.py"
RULES = "tests/unit/broker/test_directory_rules.py"
STORIES = "tests/sim/test_data_stories.py"
DAMAGED = "tests/unit/broker/test_damaged_replicas.py"
DAMAGED_STORIES = "tests/sim/test_damaged_stories.py"
DEAD = f"{STORIES}::test_a_dead_directory_is_led_elsewhere_and_nothing_of_it_is_made_anew_on_the_other"
SIM = "sim 2000..2005"

REPLICATION_BUGS = (
    Bug(
        name="cut-at-the-high-watermark",
        breaks="a follower truncates where epochs differ, never at its high watermark",
        source="KIP-101",
        file="broker/replica/partition/follower.py",
        old="        log.cut(to)\n",
        new="        log.cut(log.high_watermark)\n",
        caught_by=(FOLLOWER,),
    ),
    Bug(
        name="divergence-not-looked-for",
        breaks="a fetch past the end of its epoch in the leader's log gets that end",
        source="KIP-279, KIP-595",
        file="broker/replica/partition/local_log.py",
        old="        if epoch >= 0 and not follows:\n",
        new="        if epoch > self.epoch and not follows:\n",
        caught_by=(FETCH, SIM),
    ),
    Bug(
        name="unsynced-replica-counts",
        breaks="with log.flush.before.ack a replica holds only what is synced",
        source="DECIDED in issue 5, S3.1",
        file="broker/replica/partition/local_log.py",
        old="        return self.synced if self.counts_synced else self.written\n",
        new="        return self.written if self.counts_synced else self.synced\n",
        caught_by=(SIM,),
    ),
    Bug(
        name="fetch-offset-before-the-sync",
        breaks="a follower's fetch offset is its durable end",
        source="DECIDED in issue 5",
        file="broker/replica/partition/follower.py",
        old="self._fenced or log.acknowledged < log.end)",
        new="self._fenced or log.written < log.end)",
        caught_by=(FOLLOWER, SIM),
    ),
    Bug(
        name="high-watermark-of-the-fastest",
        breaks="the high watermark is the end that every in-sync replica holds",
        source="KIP-101",
        file="broker/replica/partition/leader.py",
        old="if follower.acknowledged < reached and isr.awaited(",
        new="if follower.acknowledged > reached and isr.awaited(",
        caught_by=(PRODUCE, SIM),
    ),
    Bug(
        name="proposed-isr-not-waited-for",
        breaks="the high watermark waits for every possible ISR member",
        source="KIP-497",
        file="broker/replica/partition/isr.py",
        old="frozenset((*self.committed, *proposed, *self._held))",
        new="frozenset((*self.committed, *proposed[:0], *self._held))",
        caught_by=(ISR,),
    ),
    Bug(
        name="isr-grown-below-the-high-watermark",
        breaks="no replica below the high watermark joins the ISR",
        source="S4.10, KIP-497",
        file="broker/replica/partition/isr.py",
        old="            and progress.acknowledged >= floor\n",
        new="            and progress.acknowledged >= 0\n",
        caught_by=("tests/properties/test_replica_partitions.py",),
    ),
    Bug(
        name="reader-above-the-high-watermark",
        breaks="clients read only below the high watermark",
        source="K21, S4.8",
        file="broker/replica/partition/local_log.py",
        old="        end = visible_end(self.log)\n",
        new="        end = self.log.written\n",
        caught_by=(FETCH, SIM),
    ),
    Bug(
        name="fetch-of-an-earlier-process",
        breaks="fetches of a broker's earlier process acknowledge nothing",
        source="KIP-903, S1.12",
        file="broker/replica/requests/handler.py",
        old="            if known is not None and 0 <= request.replica_epoch < known:\n",
        new="            if known is not None and known <= request.replica_epoch < 0:\n",
        caught_by=("tests/unit/broker/test_manager_requests.py",),
    ),
    Bug(
        name="late-copy-of-a-fetch",
        breaks="a fetch of an earlier session epoch acknowledges nothing",
        source="KIP-227",
        file="broker/replica/fetch_sessions.py",
        old="        if request.session_epoch != session.next_epoch:\n",
        new="        if request.session_epoch > session.next_epoch:\n",
        caught_by=("tests/unit/broker/test_manager_requests.py",),
    ),
    Bug(
        name="report-on-an-older-incarnation",
        breaks="a sync of records truncated since makes nothing durable",
        source="this project: incarnations",
        file="broker/replica/partition/local_log.py",
        old="        if incarnation != self.incarnation or end <= self.synced:\n",
        new="        if end <= self.synced:\n",
        caught_by=(PRODUCE,),
    ),
    Bug(
        name="waiting-for-too-few",
        breaks="acks=all fails below min.insync.replicas",
        source="S4.15",
        file="broker/replica/partition/leader.py",
        old="        if acks == ACKS_ALL and len(self.isr.committed) < self.min_isr:\n",
        new="        if acks == ACKS_ALL and len(self.isr.committed) < 0:\n",
        caught_by=(PRODUCE,),
    ),
    Bug(
        name="isr-grown-below-the-start-of-the-epoch",
        breaks="no replica joins the ISR that may lack records which only the leader knows to be committed",
        source="KIP-497",
        file="broker/replica/partition/leader.py",
        old="        return max(self._log.high_watermark, self.epoch_start)\n",
        new="        return self._log.high_watermark\n",
        caught_by=("tests/unit/broker/test_replica_isr.py",),
    ),
)

PRODUCER_BUGS = (
    Bug(
        name="duplicate-stored-again",
        breaks="a repeated batch is stored once",
        source="KIP-98",
        file="storage/partition/producers.py",
        old="if (batch.first_sequence, batch.last_sequence) == (header.base_sequence, last_sequence):",
        new="if (batch.last_sequence, batch.first_offset) == (header.base_sequence, last_sequence):",
        caught_by=(PRODUCE, SIM),
    ),
    Bug(
        name="producers-forgotten-at-the-start",
        breaks="a restart restores the producers that a replay of the log gives",
        source="KIP-98, issue 5",
        file="storage/partition/log_producers.py",
        old="min(snapshot_offset, end)\n            self._replay(table, snapshot_offset, segments, end)\n",
        new="min(snapshot_offset, end)\n",
        caught_by=(SIM,),
    ),
    Bug(
        name="producers-not-cut",
        breaks="truncation removes what producers sent after it",
        source="KIP-98, issue 5",
        file="storage/partition/partition_log.py",
        old="            self._producers.cut(self._timed_segments(), self.start_offset, end)\n",
        new="",
        caught_by=(SIM,),
    ),
)

DIRECTORY_BUGS = (
    Bug(
        name="bad-directory-spins",
        breaks="the threads of a bad directory wait",
        source="an outage seen on a local cluster: one core per dead directory",
        file="broker/server/data/directory.py",
        old="            items = self._gather(None if self._broken else next_tick_ms)\n",
        new="            items = self._gather(next_tick_ms)\n",
        caught_by=("tests/unit/server/test_data_directory.py",),
    ),
    Bug(
        name="made-anew-on-the-remaining-directory",
        breaks="a replica in an offline directory is recreated nowhere",
        source="S3.6, KIP-112; Kafka 3.7.0 does it",
        file="broker/replica/placement/reconcile.py",
        old="    if directories.is_bad(directory_id):\n        return Offline(",
        new="    if directories.is_bad(directory_id):\n        return Create(None) or Offline(",
        caught_by=(RULES, DEAD),
    ),
    Bug(
        name="lost-copy-looked-for-beside-a-bad-directory",
        breaks="while a directory is offline, a missing replica may be in it",
        source="S3.6, S3.16",
        file="broker/replica/placement/reconcile.py",
        old="    if is_new or not directories.any_bad:\n        return Create(assigned)\n",
        new="    if is_new or directories.good_ids():\n        return Create(assigned)\n",
        caught_by=(RULES,),
    ),
    Bug(
        name="leads-before-its-directory-is-committed",
        breaks="a replica leads and follows once its directory is committed",
        source="S3.6 to S3.8, KIP-858",
        file="broker/replica/placement/placement.py",
        old="if copy.was_found and info.directory_of(self._me) == MIGRATING:",
        new="if info.directory_of(self._me) != MIGRATING:",
        caught_by=(SIM,),
    ),
    Bug(
        name="dead-directory-goes-on-serving",
        breaks="replicas in a dead directory serve no request",
        source="S3.1, S3.35",
        file="broker/replica/placement/placement.py",
        old="        for copy in self.copies.in_directory(directory_id):\n            self.copies.drop",
        new="        for copy in self.copies.in_directory(directory_id)[:0]:\n            self.copies.drop",
        caught_by=(DEAD,),
    ),
    Bug(
        name="loss-not-told-first",
        breaks="a replica lost before its assignment is recreated once the log says LOST",
        source="S3.8, KIP-858",
        file="broker/replica/placement/reconcile.py",
        old="    if owes_lost:\n",
        new="    if owes_lost and not directories.any_bad:\n",
        caught_by=(f"{STORIES}::test_a_directory_dies_before_the_log_says_what_lies_in_it",),
    ),
    Bug(
        name="a-move-ends-while-its-log-is-cut",
        breaks="the replica in the new directory ends where the one in the old directory does",
        source="S3.8, KIP-113",
        file="broker/replica/placement/moves.py",
        old="        if partition.is_cutting:\n",
        new="        if partition.is_cutting and move.is_promoting:\n",
        caught_by=(MOVES,),
    ),
    Bug(
        name="damage-kept-from-the-controller",
        breaks="the controller learns of a damaged replica and no longer elects it",
        source="ADR 13",
        file="broker/replica/placement/reconcile.py",
        old="        return Damaged(assigned, damaged_in(assigned))\n",
        new="        return Damaged(assigned, None)\n",
        caught_by=(DAMAGED, DAMAGED_STORIES),
    ),
    Bug(
        name="damaged-and-given-up-where-nobody-leads",
        breaks="only an operator gives up the last in-sync replica",
        source="ADR 13, S4.5",
        file="broker/replica/placement/reconcile.py",
        old="given_up_in(directory) if led_elsewhere else None",
        new="given_up_in(directory)",
        caught_by=(
            DAMAGED,
            f"{DAMAGED_STORIES}::test_the_last_one_in_sync_waits_and_leads_again_when_it_is_whole",
        ),
    ),
    Bug(
        name="begins-anew-as-if-it-were-whole",
        breaks="a damaged replica is reported before it is recreated empty",
        source="ADR 13",
        file="broker/replica/placement/reconcile.py",
        old="    return Damaged(directory, given_up_in(directory))\n",
        new="    return Create(directory)\n",
        caught_by=(
            DAMAGED,
            f"{DAMAGED_STORIES}::test_one_that_was_moved_away_leads_nothing_before_its_loss_is_accepted",
        ),
    ),
    Bug(
        name="damaged-log-makes-its-directory-bad",
        breaks="one damaged log affects no other replica of its directory",
        source="ADR 13, LogManager.loadLogs",
        file="broker/replica/store/open.py",
        old="        except (CorruptFileError, CorruptLogError) as error:\n",
        new="        except CorruptFileError as error:\n",
        caught_by=("tests/unit/broker/test_directory_damaged.py",),
    ),
)

MOVE_BUGS = (
    Bug(
        name="moves-before-the-log-says-so",
        breaks="a replica changes its directory when the metadata log names the new one, and not before",
        source="KIP-858",
        file="broker/replica/placement/moves.py",
        old="            if move.leaves:\n",
        new="            if move.leaves or True:\n",
        caught_by=(MOVES,),
    ),
    Bug(
        name="moves-without-the-last-bytes",
        breaks="a copy becomes the replica when it has everything that was written to the old directory",
        source="docs/partition-storage.md, Moving to another directory",
        file="broker/replica/placement/moves.py",
        old="elif partition.is_held and plan.from_offset == partition.given_end:",
        new="elif partition.is_held:",
        caught_by=(MOVES,),
    ),
    Bug(
        name="copies-what-a-cut-took-away",
        breaks="what was read before a truncation is not copied after it",
        source="KIP-113",
        file="broker/replica/placement/moves.py",
        old=" or read[2] != partition.incarnation:",
        new=":",
        caught_by=(f"{MOVES}::test_what_was_read_before_a_cut_is_not_copied_after_it",),
    ),
    Bug(
        name="moving-follower-fetches-on",
        breaks="a log whose last bytes are being copied is not truncated",
        source="KIP-113",
        file="broker/replica/partition/follower.py",
        old="log.is_held or self._fenced",
        new="self._fenced",
        caught_by=(f"{MOVES}::test_a_follower_fetches_nothing_while_the_last_bytes_are_copied",),
    ),
)

SECTIONS = (
    ("Replication", REPLICATION_BUGS),
    ("Idempotent producers", PRODUCER_BUGS),
    ("Log directories of brokers", DIRECTORY_BUGS),
    ("Replicas that move between directories", MOVE_BUGS),
)
