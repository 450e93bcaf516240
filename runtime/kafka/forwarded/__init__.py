"""APIs that the active controller answers, whichever node a client asks: Kafka's messages to its requests."""
