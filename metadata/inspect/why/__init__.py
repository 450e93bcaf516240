"""Why an entity has its current state: the chain of records that led to it."""
