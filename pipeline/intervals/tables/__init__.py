"""What becomes rows: one module for each kind of thing that is followed through a log."""
