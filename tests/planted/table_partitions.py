"""Mistakes in decisions about partitions, directories, moving replicas and broker ids."""

from __future__ import annotations

from tests.planted.bug import Bug

REQUESTS = "tests/unit/controller/test_partition_requests.py"
MOVES = "tests/unit/controller/test_reassignments.py"
IDS = "tests/unit/controller/test_broker_id_decisions.py"
NODE_IDS = "tests/unit/controller/test_node_broker_ids.py"
NODE_PARTITIONS = "tests/unit/controller/test_node_partitions.py"
NODE_BROKERS = "tests/unit/controller/test_node_brokers.py"
BROKERS = "tests/unit/controller/test_broker_decisions.py"
REPLAY = "tests/unit/metadata/test_replay_meanings.py"
STORIES = "tests/sim/test_loaded_stories.py"
SIM = "sim 1000..1020"

ISR_BUGS = (
    Bug(
        name="isr-growth-accepts-whoever-is-registered",
        breaks="no fenced, leaving or restarted broker joins an ISR",
        source="S4.10, KIP-841",
        file="controller/partitions/alter_partition.py",
        old="        if reason is not None:\n",
        new="        if reason is not None and registration is None:\n",
        caught_by=(REQUESTS,),
    ),
    Bug(
        name="member-epoch-unchecked",
        breaks="a broker that restarted since the leader saw it joins no ISR",
        source="S4.10, KIP-903",
        file="controller/partitions/alter_partition.py",
        old="elif member.broker_epoch is not None and member.broker_epoch != registration.epoch:",
        new="elif member.broker_epoch is not None and member.broker_epoch > registration.epoch:",
        caught_by=(REQUESTS,),
    ),
    Bug(
        name="partition-epoch-unchecked",
        breaks="an ISR change must name the current partition epoch",
        source="S4.10, INVALID_UPDATE_VERSION",
        file="controller/partitions/alter_partition.py",
        old="if wanted.partition_epoch < partition.partition_epoch:",
        new="if wanted.partition_epoch > partition.partition_epoch:",
        caught_by=(REQUESTS, STORIES),
    ),
    Bug(
        name="isr-from-a-former-leader",
        breaks="only the current leader changes the ISR",
        source="S4.10, KIP-497",
        file="controller/partitions/alter_partition.py",
        old="if sender != partition.leader:",
        new="if sender not in partition.replicas:",
        caught_by=(REQUESTS,),
    ),
    Bug(
        name="isr-without-its-leader",
        breaks="the leader is in the new ISR",
        source="S4.10",
        file="controller/partitions/alter_partition.py",
        old="if partition.leader not in isr:",
        new="if partition.leader not in partition.replicas:",
        caught_by=(REQUESTS,),
    ),
    Bug(
        name="growth-while-recovering",
        breaks="no replica joins the ISR of a recovering leader",
        source="S4.10, KIP-704",
        file="controller/partitions/alter_partition.py",
        old="if state == RECOVERING and len(wanted.isr) > 1:",
        new="if state == RECOVERING and len(wanted.isr) < 1:",
        caught_by=(REQUESTS,),
    ),
    Bug(
        name="partition-epoch-not-raised",
        breaks="every change of a partition raises its epoch",
        source="S2.33, KIP-497",
        file="metadata/meanings.py",
        old="partition_epoch=_next_int32(before.partition_epoch),",
        new="partition_epoch=before.partition_epoch,",
        caught_by=(REPLAY, SIM),
    ),
    Bug(
        name="isr-growth-accepts-a-broker-that-is-being-fenced",
        breaks="no broker joins an ISR while its partitions are being moved away",
        source="S4.10, KIP-841",
        file="controller/partitions/alter_partition.py",
        old="registration.fenced or not rules.may_lead(member.broker_id)",
        new="registration.fenced",
        caught_by=("tests/unit/controller/test_partition_requests.py",),
    ),
)

ELECTION_BUGS = (
    Bug(
        name="unclean-without-permission",
        breaks="a replica outside the ISR leads only where that is allowed",
        source="S4.5",
        file="controller/partitions/partition_change.py",
        old="        if election is Election.UNCLEAN:\n",
        new="        if election is not Election.PREFERRED:\n",
        caught_by=(REQUESTS, STORIES, SIM),
    ),
    Bug(
        name="unclean-leader-that-lies-nowhere",
        breaks="a replica without a directory is never elected",
        source="S3.6, S4.5",
        file="controller/partitions/partition_change.py",
        old="        return self._accepts(replica) and not (nowhere and is_known)\n",
        new="        return self._accepts(replica)\n",
        caught_by=(REQUESTS,),
    ),
    Bug(
        name="unclean-leader-with-the-old-isr",
        breaks="an uncleanly elected leader is the only ISR member",
        source="S4.5, KIP-704",
        file="controller/partitions/partition_change.py",
        old="            self.isr, self.elr = (node,), ()\n",
        new="            self.isr, self.elr = (*self.isr, node), ()\n",
        caught_by=(REQUESTS, SIM),
    ),
    Bug(
        name="unclean-leader-not-recovering",
        breaks="an uncleanly elected leader is recovering until it reports otherwise",
        source="KIP-704",
        file="controller/partitions/partition_change.py",
        old="self.recovery_state = LEADER_RECOVERING\n        elif node in self.elr:",
        new="pass\n        elif node in self.elr:",
        caught_by=(REQUESTS, SIM),
    ),
    Bug(
        name="fenced-before-its-partitions-moved",
        breaks="the fence is in the last batch, after every partition moved",
        source="S2.29, docs/architecture.md, A broker's death",
        file="controller/active/outcome.py",
        old="final=final, scan=scan, unclean=unclean",
        new="first=final, scan=scan, unclean=unclean",
        caught_by=(NODE_BROKERS, SIM),
    ),
    Bug(
        name="shutting-down-broker-let-in",
        breaks="only a registration ends a broker's controlled shutdown",
        source="K9, KIP-841",
        file="controller/active/brokers.py",
        old="session.unfence_from_offset and not leaving",
        new="session.unfence_from_offset",
        caught_by=(NODE_BROKERS, "tests/properties/test_controller_brokers.py"),
    ),
    Bug(
        name="shutdown-that-nobody-wants-sticks",
        breaks="a running broker corrects a shutdown that others requested",
        source="S1.10",
        file="broker/session.py",
        old="untold or (leaving and not self.state.wants_shutdown)",
        new="untold",
        caught_by=("tests/unit/broker/test_node.py", "tests/sim/test_scenarios.py", "sim 0..40"),
    ),
    Bug(
        name="moves-of-an-earlier-shutdown-count",
        breaks="a shutdown is granted by its own moves, not an earlier one's",
        source="K9",
        file="controller/active/brokers.py",
        old="session = replace(session, moves_end_offset=None)",
        new="pass",
        caught_by=(NODE_BROKERS,),
    ),
)

DIRECTORY_BUGS = (
    Bug(
        name="given-up-counts-as-whole",
        breaks="a damaged replica leads cleanly only if it is whole again",
        source="ADR 13",
        file="controller/partitions/log_dirs.py",
        old="not in {directory, damaged_in(directory)}",
        new="not in {directory, before}",
        caught_by=("tests/unit/controller/test_damaged_replicas.py", REQUESTS),
    ),
    Bug(
        name="last-in-sync-leads-with-an-empty-log",
        breaks="a replica whose directory is gone leads only uncleanly",
        source="S3.15, S4.5",
        file="controller/partitions/log_dirs.py",
        old="emptied = gone and before != LOST",
        new="emptied = False",
        caught_by=(REQUESTS, SIM),
    ),
    Bug(
        name="unreported-directory-refused",
        breaks="a replica joins an ISR before its broker has reported its directory, as Kafka's do",
        source="Kafka 3.9: TopicDelta.localChanges passes over replicas that a reassignment adds",
        file="controller/partitions/alter_partition.py",
        old="if directory is not None and not rules.accepts(member.broker_id, directory):",
        new="if directory is not None and directory not in registration.directories:",
        caught_by=(REQUESTS,),
    ),
    Bug(
        name="leader-in-a-dead-directory",
        breaks="no replica in an offline directory is elected",
        source="S3.15, KIP-858",
        file="controller/partitions/partition_change.py",
        old="            and directory_online(self.brokers, replica, directory)",
        new="            and replica in self.brokers",
        caught_by=(REQUESTS, SIM),
    ),
    Bug(
        name="directory-dropped-under-its-leaders",
        breaks="a registration that drops a directory waits until nothing in it leads",
        source="S3.15",
        file="controller/brokers/brokers.py",
        old="return known.incarnation_id != request.incarnation_id or not set(known.directories) <= set(",
        new="return known.incarnation_id != request.incarnation_id and not set(known.directories) < set(",
        caught_by=(BROKERS, NODE_PARTITIONS),
    ),
    Bug(
        name="replica-moved-into-a-dead-directory",
        breaks="a replica reported in a dead directory loses leadership and ISR",
        source="S3.9, S3.15",
        file="controller/partitions/log_dirs.py",
        old="online = directory not in rules.failing and directory_online(",
        new="online = True or directory_online(",
        caught_by=(REQUESTS,),
    ),
)

MOVE_BUGS = (
    Bug(
        name="moved-before-the-target-is-in-sync",
        breaks="a reassignment ends when the ISR has every remaining replica",
        source="S4.17, KIP-455",
        file="controller/partitions/partition_change.py",
        old="if not isr or not replicas or not set(replicas) <= set(isr):",
        new="if not isr or not replicas or not set(replicas) & set(isr):",
        caught_by=(MOVES, SIM),
    ),
    Bug(
        name="cancelled-move-keeps-what-it-added",
        breaks="a cancelled reassignment leaves the replicas from before it",
        source="S4.18, KIP-455",
        file="controller/partitions/reassignments.py",
        old="return tuple([replica for replica in partition.replicas if replica not in partition.adding])",
        new="return tuple([replica for replica in partition.replicas if replica not in partition.isr])",
        caught_by=(MOVES, STORIES, SIM),
    ),
    Bug(
        name="replaced-move-drops-an-original",
        breaks="a reassignment that replaces another starts from the originals",
        source="S4.18, KIP-455",
        file="controller/partitions/reassignments.py",
        old="removing = tuple(sorted(set(original) - set(target)))",
        new="removing = tuple(sorted(set(original) - set(target) - set(partition.removing)))",
        caught_by=(MOVES,),
    ),
)

ID_BUGS = (
    Bug(
        name="id-taken-within-the-grace-period",
        breaks="a missing id is free only after broker.id.reuse.grace.ms",
        source="S0.22",
        file="controller/brokers/broker_ids.py",
        old="or presence.absent_ms(broker_id) >= config.broker_id_reuse_grace_ms",
        new="or presence.absent_ms(broker_id) >= 0",
        caught_by=(IDS, NODE_IDS, STORIES),
    ),
    Bug(
        name="new-id-that-was-handed-out-before",
        breaks="no new id is handed out twice",
        source="S0.10",
        file="controller/brokers/broker_ids.py",
        old="broker_id = max(config.reserved_broker_max_id + 1, ids.next_id(entries))",
        new="broker_id = config.reserved_broker_max_id + 1",
        caught_by=(IDS,),
    ),
    Bug(
        name="new-id-that-partitions-name",
        breaks="no registration and no replica names a new id",
        source="S0.10, S0.16",
        file="controller/brokers/broker_ids.py",
        old="taken = {*image.brokers, *image.topics.replica_counts(), *voters}",
        new="taken = {*voters}",
        caught_by=(IDS,),
    ),
    Bug(
        name="repeated-request-gets-another-id",
        breaks="all requests of one start get one id from any controller",
        source="S0.1, S0.10",
        file="controller/brokers/broker_ids.py",
        old="    if mine is not None:\n",
        new="    if mine is not None and mine.broker_id < 0:\n",
        caught_by=(IDS, NODE_IDS),
    ),
    Bug(
        name="garbage-binding-kept",
        breaks="obsolete bindings to a running broker are removed",
        source="S0.18",
        file="controller/brokers/broker_ids.py",
        old="        if home is not None and home.broker_id == broker_id:\n",
        new="        if home is not None and home.broker_id != broker_id:\n",
        caught_by=(IDS, NODE_IDS),
    ),
    Bug(
        name="a-change-of-all-keys-forgets-the-ids",
        breaks="the cluster remembers which ids are bound and were handed out",
        source="S0",
        file="controller/settings/settings.py",
        old="        if name not in named and not is_id_memory(name)\n",
        new="        if name not in named\n",
        caught_by=("tests/unit/controller/test_settings_decisions.py",),
    ),
)

SECTIONS = (
    ("In-sync replicas", ISR_BUGS),
    ("Elections", ELECTION_BUGS),
    ("Log directories", DIRECTORY_BUGS),
    ("Moving replicas", MOVE_BUGS),
    ("Broker ids", ID_BUGS),
)
