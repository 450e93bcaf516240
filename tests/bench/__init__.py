"""Benches of "how fast": each measures real code, prints figures beside their targets, and cleans up."""
