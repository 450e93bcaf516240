"""Walks over a log: from state to state, in columns where details are not needed, and past damage."""
