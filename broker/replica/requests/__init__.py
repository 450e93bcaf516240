"""Requests for partition data on the broker: produce, fetch, offsets, descriptions."""
