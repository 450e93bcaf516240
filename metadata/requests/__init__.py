"""Requests to controllers and brokers and their answers, as values, and the rates that quotas bound."""
