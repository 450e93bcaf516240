"""Mistakes with eligible leader replicas (KIP-966), clean shutdowns, and what depends on both."""

from __future__ import annotations

from tests.planted.bug import Bug

ELIGIBLE = "tests/unit/controller/test_eligible_leaders.py"
COLUMNS = "tests/properties/test_column_decisions.py"
CLEAN = "tests/unit/storage/test_what_returned_is_durable.py"

ELIGIBLE_BUGS = (
    Bug(
        name="a-full-isr-keeps-eligible-leaders",
        breaks="with min.insync.replicas in sync, no other replica is eligible",
        source="KIP-966",
        file="controller/partitions/partition_change.py",
        old="if len(self.isr) >= self.rules.min_isr(self.partition.topic_id):",
        new="if len(self.isr) > self.rules.min_isr(self.partition.topic_id):",
        caught_by=(ELIGIBLE,),
    ),
    Bug(
        name="an-unclean-stop-stays-eligible",
        breaks="a broker that may have lost data is not eligible",
        source="K8, KIP-966",
        file="controller/partitions/partition_change.py",
        old="known = {*self.elr, *self.partition.isr} - set(self.isr) - self.target.unclean_shutdown",
        new="known = {*self.elr, *self.partition.isr} - set(self.isr)",
        caught_by=(ELIGIBLE, COLUMNS),
    ),
    Bug(
        name="any-earlier-epoch-proves-a-clean-stop",
        breaks="only the previous incarnation's epoch proves a clean stop",
        source="K8, KIP-966",
        file="controller/brokers/brokers.py",
        old="if request.previous_broker_epoch == known.epoch:",
        new="if request.previous_broker_epoch is not None:",
        caught_by=(ELIGIBLE,),
    ),
    Bug(
        name="lowered-min-isr-keeps-eligible-leaders",
        breaks="lowering min.insync.replicas to the ISR's size ends eligibility",
        source="KIP-966",
        file="controller/partitions/rules.py",
        old="if len(partition.isr) >= wanted[partition.topic_id]:",
        new="if len(partition.isr) > wanted[partition.topic_id]:",
        caught_by=(ELIGIBLE,),
    ),
    Bug(
        name="a-downgrade-leaves-partitions-without-an-isr",
        breaks="after a downgrade, partitions that had only eligible leaders can have a leader",
        source="KIP-966",
        file="controller/partitions/partition_change.py",
        old="if not self.isr and self.elr:",
        new="if self.isr and self.elr:",
        caught_by=(ELIGIBLE,),
    ),
    Bug(
        name="a-proof-of-a-clean-stop-is-used-twice",
        breaks="the proof of a clean stop is removed before the next process writes",
        source="KIP-966",
        file="storage/partition/replica_directory.py",
        old="if remove_if_present(disk, join(directory, CLEAN_SHUTDOWN_FILE)):",
        new="if disk.exists(join(directory, CLEAN_SHUTDOWN_FILE)):",
        caught_by=(CLEAN,),
    ),
    Bug(
        name="replicas-in-good-directories-fail-too",
        breaks="a dead directory affects only its own replicas",
        source="S3.15, S3.35",
        file="controller/partitions/partitions.py",
        old="inside = (mine & np.isin(data[LISTS + width : LISTS + 2 * width], codes)).any(axis=0)",
        new="inside = (mine | np.isin(data[LISTS + width : LISTS + 2 * width], codes)).any(axis=0)",
        caught_by=(COLUMNS,),
    ),
    Bug(
        name="an-upgraded-broker-keeps-its-directories-to-itself",
        breaks="after the upgrade, a broker registers its directories",
        source="S1.22, KIP-858",
        file="broker/session.py",
        old="untold = directories is not None and not",
        new="untold = directories is None and not",
        caught_by=("tests/unit/broker/test_node.py",),
    ),
    Bug(
        name="a-proposed-member-makes-a-minimum",
        breaks="no high watermark is reached that fewer replicas hold than min.insync.replicas says",
        source="KIP-966",
        file="broker/replica/partition/leader.py",
        old="self.settings.holds_back_high_watermark or len(isr.committed) >= self.min_isr",
        new="self.settings.holds_back_high_watermark or len(isr.maximal) >= self.min_isr",
        caught_by=("tests/unit/broker/test_replica_isr.py",),
    ),
)
