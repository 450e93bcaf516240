"""Decisions about what operators set: configurations, features, ACLs, credentials, quotas, tokens."""
