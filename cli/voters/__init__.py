"""Voters that come and go: which steps a change takes, and taking them one after another."""
