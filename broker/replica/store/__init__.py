"""One log directory on its disk: opened, written, synced, changed so that a crash loses nothing."""
