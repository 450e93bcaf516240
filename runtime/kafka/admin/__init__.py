"""What administrators ask a cluster of Kafka's protocol: functions of a `KafkaClient` that give values."""
