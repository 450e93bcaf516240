"""The `Disk` interface, and the real disk behind it."""
