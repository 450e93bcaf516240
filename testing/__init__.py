"""Test doubles for storage, for this project's tests and for those of its users."""
