"""Voters that say they belong to another cluster: whose directory is the wrong one, theirs or this node's.

One voter of another cluster is at a wrong address. When so many are that the others make no majority, it is
this directory that is foreign, and waiting helps no one.
"""

from __future__ import annotations

from metaquorum.raft.core import RaftCore
from metaquorum.raft.messages import RaftError


class ForeignVoters:
    """`cluster_id` is what this node's directory was formatted for."""

    def __init__(self, cluster_id: str, raft: RaftCore) -> None:
        self._cluster_id = cluster_id
        self._raft = raft
        self._foreign: set[int] = set()

    def heard(self, source: int, error: RaftError) -> str | None:
        """A voter answered. Not None: why this node has to stop."""
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
            f"belongs to cluster {self._cluster_id}, and {who} to another one: give it its own cluster's "
            f"directory, or correct {key}"
        )
