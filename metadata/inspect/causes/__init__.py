"""Why an entity is as it is: chains of records, and causes derived by named rules."""
