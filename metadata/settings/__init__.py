"""What an operator sets: the table of configuration keys, and access control, SCRAM, quotas and levels as
values."""
