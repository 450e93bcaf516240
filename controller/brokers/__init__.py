"""Decisions about brokers and controllers: registrations, heartbeats, sessions, broker ids."""
