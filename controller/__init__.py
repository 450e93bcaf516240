"""The active controller: Raft beneath it, decisions in it, and the node that orders their effects."""
