"""Decisions on operators' settings: configurations, features, ACLs, credentials, quotas, tokens."""
