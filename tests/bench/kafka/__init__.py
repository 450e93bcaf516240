"""What `python -m tests.bench kafka` measures, by subject."""
