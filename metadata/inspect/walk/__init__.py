"""Walks over a log: from state to state, in columns where nobody looks, past what is damaged."""
