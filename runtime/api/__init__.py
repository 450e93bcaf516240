"""Requests and answers between values and protobuf."""
