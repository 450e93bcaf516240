"""Voters that report another cluster: whether the wrong directory is theirs or this node's.

Owns that judgment and the reports behind it. Does not end the process: its caller does. One voter of another
cluster means a wrong address. When there are so many that the others are not a majority, the directory of
this node is the foreign one, and waiting does not help.
"""

from __future__ import annotations

from metaquorum.raft.core import RaftCore
from metaquorum.raft.messages import RaftError


class ForeignVoters:
    """`cluster_id` is that for which this node's directory was formatted."""

    def __init__(self, cluster_id: str, raft: RaftCore) -> None:
        self._cluster_id = cluster_id
        self._raft = raft
        self._foreign: set[int] = set()

    def heard(self, source: int, error: RaftError) -> str | None:
        """A voter answered. Returns why this node has to stop, or None."""
        if error is not RaftError.INCONSISTENT_CLUSTER_ID:
            self._foreign.discard(source)
            return None
        self._foreign.add(source)
        voters, servers = set(self._raft.voters), set(self._raft.state.config.bootstrap_ids)
        if 2 * len(voters - self._foreign) > len(voters) or (not voters and servers - self._foreign):
            return None
        others = ", ".join(str(node_id) for node_id in sorted(self._foreign))
        who, key = f"a majority of the voters ({others})", "controller.quorum.voters"
        if not voters:
            who, key = "its bootstrap servers", "controller.quorum.bootstrap.servers"
        return (
            f"belongs to cluster {self._cluster_id}, but {who} to another one: give it its own cluster's "
            f"directory, or correct {key}"
        )
