"""What an operator sets: the table of configuration keys, and access control, SCRAM, quotas and levels as
values. Owns what may be set and how an image is described; decides nothing and writes no records."""
