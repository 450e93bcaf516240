"""Requests to controllers and brokers and their answers, as values."""
