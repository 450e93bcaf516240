"""Synthetic fleets of metadata logs with known truth. `files` writes them, the rest is pure."""
