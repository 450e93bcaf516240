"""Why an entity is as it is: the chain of records after it."""
