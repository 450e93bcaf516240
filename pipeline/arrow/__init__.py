"""Records of a log as Arrow record batches: the wide view, and a typed table for each record type."""
