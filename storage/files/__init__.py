"""The small files beside a log: checkpoints, identity, quorum state, snapshots."""
