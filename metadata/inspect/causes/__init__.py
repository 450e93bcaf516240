"""Causes derived from records by named rules."""
