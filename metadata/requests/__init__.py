"""Requests to the active controller and their answers, as values."""
