"""Runs one node in a process: what a step contains, what its effects do, which threads wait for the disk."""
