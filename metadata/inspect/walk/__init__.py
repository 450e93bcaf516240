"""Walks over a log: from state to state, in columns where no one looks, past what is damaged."""
