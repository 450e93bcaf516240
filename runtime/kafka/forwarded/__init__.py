"""APIs that the active controller answers, from any node: Kafka's messages to the controller's requests."""
