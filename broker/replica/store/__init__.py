"""One log directory on its disk: opened, written, synced, and changed in a way that survives a crash."""
