"""What happened: events told from records, one line each."""
