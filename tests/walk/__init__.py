"""Traces of requests, taken from running code: which files each request passes, in order."""
