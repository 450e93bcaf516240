"""Formatting a node's directories, and what it needs to know of configuration and releases."""
