"""Requests and responses between values and protobuf."""
