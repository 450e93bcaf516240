"""The checks of each API of Kafka's protocol before it is answered, and what its answer hides."""
