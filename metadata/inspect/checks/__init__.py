"""Checks over a log: invariants, single records, and the search for the first place at which one fails."""
