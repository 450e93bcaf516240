"""Protobuf messages and the values that they stand for, from tables."""
