"""What happened: events derived from records, one line each."""
