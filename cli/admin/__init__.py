"""Commands that administer a cluster, one module per group."""
