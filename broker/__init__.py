"""Broker lifecycle and metadata follower as pure state machines, and their shell."""

if __name__ == "broker":
    raise ImportError("import metaquorum.broker: this folder is a part of the package metaquorum")
