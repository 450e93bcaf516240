"""The client of partition data: a producer, a consumer, and what both know of the cluster.

Owns batching, retries, idempotence, positions and following leaders. Asks brokers through the Data service
(`connections`), reads metadata from any node. Knows nothing of the inside of a broker.
"""
