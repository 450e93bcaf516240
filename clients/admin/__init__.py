"""Administration by Kafka's protocol, one function for each question or change."""
