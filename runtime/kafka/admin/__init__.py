"""Administrators' calls to a cluster in Kafka's protocol: functions of a `KafkaClient` that return values."""
