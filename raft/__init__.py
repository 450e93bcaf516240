"""Pull Raft (KIP-595, KIP-630, KIP-996) as a pure state machine. A record is bytes here."""
