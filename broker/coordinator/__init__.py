"""Coordinators: one replicated state machine per partition of an internal topic that this broker leads."""
