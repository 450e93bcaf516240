"""Broker lifecycle and metadata follower as pure state machines, and their shell."""
