"""Transactions on the Kafka listeners: the coordinators' APIs, verification, and markers to other brokers."""
