"""The inside of the producer: batches, their queues, and sending them."""
