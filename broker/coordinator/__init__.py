"""Coordinators: a replicated state machine for each partition of an internal topic that this broker leads."""
