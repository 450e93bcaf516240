"""Commands on who may use a cluster, and how much of it."""
