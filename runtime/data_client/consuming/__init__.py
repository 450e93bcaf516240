"""The inside of the consumer: fetching, unpacking, and looking up offsets."""
