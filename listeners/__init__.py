"""Kafka's protocol on a port: login, quotas, bounds of memory, the order of answers, and which APIs."""

if __name__ == "listeners":
    raise ImportError("import metaquorum.listeners: this folder is a part of the package metaquorum")
