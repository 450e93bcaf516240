"""What each API of Kafka's protocol checks before it is answered, and what it hides."""
