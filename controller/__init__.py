"""The active controller: Raft below it, decisions in it, and the node that orders their effects."""
