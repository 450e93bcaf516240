"""Names of the topics that Kafka keeps its own state in."""

METADATA_TOPIC = "__cluster_metadata"
"""The log of the quorum, as partition 0 of a topic; no broker has it as a topic."""
OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTIONS_TOPIC = "__transaction_state"
INTERNAL_TOPICS = frozenset({OFFSETS_TOPIC, TRANSACTIONS_TOPIC})
